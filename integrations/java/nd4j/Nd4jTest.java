import dev.fastnorm.Context;
import dev.fastnorm.Device;
import org.nd4j.linalg.api.buffer.DataType;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.api.ops.impl.transforms.custom.LayerNorm;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.indexing.NDArrayIndex;
import org.nd4j.linalg.ops.transforms.Transforms;

/** Values and time beside ND4J's, and values in double precision. */
final class Nd4jTest {
    private static final double EPS = 1e-5; // that of ND4J's LayerNorm

    private Nd4jTest() {}

    private static float[] floats(INDArray array) {
        return array.dup('c').castTo(DataType.FLOAT).reshape(-1).toFloatVector();
    }

    private static INDArray theirRms(INDArray x, INDArray weight) {
        INDArray square = x.mul(x).mean(true, 1).addi(EPS);
        return x.divColumnVector(Transforms.sqrt(square, false)).muliRowVector(weight);
    }

    private static INDArray theirLayer(INDArray x, INDArray weight, INDArray bias) {
        INDArray y = Nd4j.createUninitialized(x.dataType(), x.shape(), 'c');
        Nd4j.exec(new LayerNorm(x, weight, bias, y, true, 1));
        return y;
    }

    private static void values(Beside beside, Context context) {
        int n = 100;
        for (DataType dtype : new DataType[] {DataType.FLOAT, DataType.HALF, DataType.BFLOAT16}) {
            INDArray x = Nd4j.createFromArray(Beside.numbers(1, 0.3, 12 * n)).reshape(12, n);
            INDArray weight = Nd4j.createFromArray(Beside.numbers(2, 1, n)).castTo(dtype);
            INDArray bias = Nd4j.createFromArray(Beside.numbers(3, 0, n)).castTo(dtype);
            x = x.castTo(dtype);
            double unit = dtype == DataType.FLOAT ? 5e-7 : dtype == DataType.HALF ? 5e-4 : 4e-3;
            double[] wanted = Beside.norm(floats(x), floats(weight), null, false, EPS);
            INDArray y = Nd4jNorms.rmsNorm(context, x, weight, EPS);
            beside.check("dtype of y, " + dtype, y.dataType() == dtype, "" + y.dataType());
            beside.checkError("rms " + dtype, Beside.error(floats(y), wanted), unit);
            wanted = Beside.norm(floats(x), floats(weight), floats(bias), true, EPS);
            y = Nd4jNorms.layerNorm(context, x, weight, bias, EPS);
            beside.checkError("layer " + dtype, Beside.error(floats(y), wanted), unit);
        }
    }

    private static void views(Beside beside, Context context) {
        INDArray buffer = Nd4j.createFromArray(Beside.numbers(4, 0.5, 6 * 8 * 40));
        buffer = buffer.reshape(6, 8, 40);
        INDArray weight = Nd4j.createFromArray(Beside.numbers(5, 1, 40));
        INDArray[] views = {
            buffer.get(NDArrayIndex.interval(1, 5), NDArrayIndex.interval(2, 7),
                    NDArrayIndex.all()),
            buffer.get(NDArrayIndex.point(3), NDArrayIndex.all(), NDArrayIndex.all()),
            buffer.permute(1, 0, 2),
            buffer.reshape(48, 40).get(NDArrayIndex.interval(5, 2, 45), NDArrayIndex.all()),
        };
        for (INDArray x : views) {
            double[] wanted = Beside.norm(floats(x), floats(weight), null, false, EPS);
            INDArray y = Nd4jNorms.rmsNorm(context, x, weight, EPS);
            String name = "a view of shape " + java.util.Arrays.toString(x.shape());
            beside.checkError(name, Beside.error(floats(y), wanted), 5e-7);
        }
        INDArray some = buffer.get(NDArrayIndex.all(), NDArrayIndex.all(),
                NDArrayIndex.interval(8, 24));
        INDArray part = weight.get(NDArrayIndex.interval(8, 24));
        double[] wanted = Beside.norm(floats(some), floats(part), null, false, EPS);
        INDArray y = Nd4jNorms.rmsNorm(context, some, part, EPS);
        beside.checkError("some columns", Beside.error(floats(y), wanted), 5e-7);
        INDArray columns = buffer.reshape(48, 40).dup('f');
        beside.checkRefused("columns first", "x.strides[1]",
                () -> Nd4jNorms.rmsNorm(context, columns, weight, EPS));
        INDArray doubles = columns.castTo(DataType.DOUBLE);
        beside.checkRefused("doubles", "required: FLOAT, HALF or BFLOAT16",
                () -> Nd4jNorms.rmsNorm(context, doubles, weight, EPS));
    }

    private static void figures(Beside beside, Context context, int rounds) {
        int n = Beside.COLUMNS;
        float[] w = Beside.numbers(7, 1, n);
        float[] b = Beside.numbers(8, 0, n);
        INDArray weight = Nd4j.createFromArray(w);
        INDArray bias = Nd4j.createFromArray(b);
        for (int rows : new int[] {1, 256}) {
            float[] numbers = Beside.numbers(6, 0.2, rows * n);
            INDArray x = Nd4j.createFromArray(numbers).reshape(rows, n);
            double[] wanted = Beside.norm(numbers, w, null, false, EPS);
            beside.time(rounds, "RMSNorm", rows, () -> theirRms(x, weight),
                    () -> Nd4jNorms.rmsNorm(context, x, weight, EPS),
                    Beside.error(floats(theirRms(x, weight)), wanted),
                    Beside.error(floats(Nd4jNorms.rmsNorm(context, x, weight, EPS)), wanted));
            wanted = Beside.norm(numbers, w, b, true, EPS);
            beside.time(rounds, "LayerNorm", rows, () -> theirLayer(x, weight, bias),
                    () -> Nd4jNorms.layerNorm(context, x, weight, bias, EPS),
                    Beside.error(floats(theirLayer(x, weight, bias)), wanted),
                    Beside.error(floats(Nd4jNorms.layerNorm(context, x, weight, bias, EPS)),
                            wanted));
        }
    }

    public static void main(String[] args) {
        Beside beside = new Beside();
        try (Context context = Context.builder(Device.cpu()).threads(Beside.THREADS).open()) {
            values(beside, context);
            views(beside, context);
            figures(beside, context, Integer.parseInt(args[0]));
        }
        beside.finish();
    }
}
