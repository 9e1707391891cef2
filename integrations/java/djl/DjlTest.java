import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.norm.LayerNorm;
import dev.fastnorm.Context;
import dev.fastnorm.Device;
import dev.fastnorm.Tensor;

/** Values and time beside PyTorch's, and values in double precision. */
final class DjlTest {
    private static final float EPS = 1e-5f;

    private DjlTest() {}

    private static float[] floats(NDArray array) {
        return array.toType(DataType.FLOAT32, true).toFloatArray();
    }

    private static NDArray theirRms(NDArray x, NDArray weight) {
        NDArray square = x.square().mean(new int[] {-1}, true).add(EPS);
        return x.div(square.sqrt()).mul(weight);
    }

    private static NDArray theirLayer(NDArray x, NDArray weight, NDArray bias) {
        Shape columns = weight.getShape();
        return LayerNorm.layerNorm(x, columns, weight, bias, EPS).singletonOrThrow();
    }

    private static void values(Beside beside, Context context, NDManager manager) {
        int n = 100;
        for (DataType dtype : new DataType[] {DataType.FLOAT32, DataType.FLOAT16}) {
            NDArray x = manager.create(Beside.numbers(1, 0.3, 12 * n), new Shape(3, 4, n));
            NDArray weight = manager.create(Beside.numbers(2, 1, n)).toType(dtype, true);
            NDArray bias = manager.create(Beside.numbers(3, 0, n)).toType(dtype, true);
            x = x.toType(dtype, true);
            Tensor w = DjlNorms.of(weight);
            Tensor b = DjlNorms.of(bias);
            double unit = dtype == DataType.FLOAT32 ? 5e-7 : 5e-4;
            double[] wanted = Beside.norm(floats(x), floats(weight), null, false, EPS);
            NDArray y = DjlNorms.rmsNorm(context, x, w, EPS);
            beside.check("dtype of y, " + dtype, y.getDataType() == dtype, "" + y.getDataType());
            beside.checkError("rms " + dtype, Beside.error(floats(y), wanted), unit);
            wanted = Beside.norm(floats(x), floats(weight), floats(bias), true, EPS);
            y = DjlNorms.layerNorm(context, x, w, b, EPS);
            beside.checkError("layer " + dtype, Beside.error(floats(y), wanted), unit);
            double theirs = Beside.error(floats(theirLayer(x, weight, bias)), wanted);
            beside.checkError("layer, PyTorch, " + dtype, Beside.error(floats(y), wanted),
                    1.1 * theirs + 1e-7);
        }
        NDArray x = manager.create(Beside.numbers(1, 0, 48), new Shape(6, 8));
        NDArray weight = manager.create(Beside.numbers(2, 1, 8));
        beside.checkRefused("doubles", "required: FLOAT32, FLOAT16 or BFLOAT16",
                () -> DjlNorms.rmsNorm(context, x.toType(DataType.FLOAT64, true),
                        DjlNorms.of(weight), EPS));
        // What another engine's operator has made is the library's input, and the other way round.
        NDArray y = DjlNorms.rmsNorm(context, x.add(1), DjlNorms.of(weight), EPS).mul(2);
        double[] wanted = Beside.norm(floats(x.add(1)), floats(weight), null, false, EPS);
        for (int i = 0; i < wanted.length; i++) {
            wanted[i] *= 2;
        }
        beside.checkError("between the engine's operators", Beside.error(floats(y), wanted), 5e-7);
    }

    private static void figures(Beside beside, Context context, NDManager parent, int rounds) {
        int n = Beside.COLUMNS;
        float[] weights = Beside.numbers(7, 1, n);
        float[] biases = Beside.numbers(8, 0, n);
        for (int rows : new int[] {1, 256}) {
            float[] numbers = Beside.numbers(6, 0.2, rows * n);
            try (NDManager manager = parent.newSubManager()) {
                NDArray x = manager.create(numbers, new Shape(rows, n));
                NDArray weight = manager.create(weights);
                NDArray bias = manager.create(biases);
                Tensor w = DjlNorms.of(weight);
                Tensor b = DjlNorms.of(bias);
                double[] wanted = Beside.norm(numbers, weights, null, false, EPS);
                beside.time(rounds, "RMSNorm", rows, closing(x, () -> theirRms(x, weight)),
                        closing(x, () -> DjlNorms.rmsNorm(context, x, w, EPS)),
                        Beside.error(floats(theirRms(x, weight)), wanted),
                        Beside.error(floats(DjlNorms.rmsNorm(context, x, w, EPS)), wanted));
                wanted = Beside.norm(numbers, weights, biases, true, EPS);
                beside.time(rounds, "LayerNorm", rows,
                        closing(x, () -> theirLayer(x, weight, bias)),
                        closing(x, () -> DjlNorms.layerNorm(context, x, w, b, EPS)),
                        Beside.error(floats(theirLayer(x, weight, bias)), wanted),
                        Beside.error(floats(DjlNorms.layerNorm(context, x, w, b, EPS)),
                                wanted));
            }
        }
    }

    /** The work, with all arrays that it makes closed at its end, as a program does. */
    private static Beside.Work closing(NDArray x, Beside.Work work) {
        NDManager owner = x.getManager();
        return () -> {
            try (NDManager manager = owner.newSubManager()) {
                x.attach(manager); // results belong to the manager of x
                work.run();
                x.attach(owner);
            }
        };
    }

    public static void main(String[] args) {
        Beside beside = new Beside();
        try (Context context = Context.builder(Device.cpu()).threads(Beside.THREADS).open();
                NDManager manager = NDManager.newBaseManager()) {
            values(beside, context, manager);
            figures(beside, context, manager, Integer.parseInt(args[0]));
        }
        beside.finish();
    }
}
