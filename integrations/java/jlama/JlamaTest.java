import com.github.tjake.jlama.math.ActivationFunction;
import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.RMSNorm;
import com.github.tjake.jlama.model.llama.LlamaModel;
import com.github.tjake.jlama.safetensors.Config;
import com.github.tjake.jlama.safetensors.DType;
import com.github.tjake.jlama.tensor.AbstractTensor;
import com.github.tjake.jlama.tensor.BFloat16BufferTensor;
import com.github.tjake.jlama.tensor.FloatBufferTensor;
import com.github.tjake.jlama.tensor.Q8ByteBufferTensor;
import dev.fastnorm.Context;
import java.lang.reflect.Field;
import java.util.List;
import sun.misc.Unsafe;

/** Values and time beside jlama's, and values in double precision. */
final class JlamaTest {
    private static final float EPS = 1e-5f;

    private JlamaTest() {}

    /**
     * A model with a configuration and without weights, which is all that jlama's norms ask for.
     * Its constructor reads a checkpoint, so it is made without one.
     */
    private static AbstractModel model(int columns) throws ReflectiveOperationException {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        Unsafe unsafe = (Unsafe) field.get(null);
        AbstractModel model = (AbstractModel) unsafe.allocateInstance(LlamaModel.class);
        Config config = new Config(128, columns, columns, 4, 4, 1, EPS, 32, 1, List.of(2),
                ActivationFunction.Type.SILU, 10000.0, 1.0);
        set(model, "c", config);
        set(model, "workingDType", DType.F32);
        return model;
    }

    private static void set(AbstractModel model, String name, Object value)
            throws ReflectiveOperationException {
        Field field = AbstractModel.class.getDeclaredField(name);
        field.setAccessible(true);
        field.set(model, value);
    }

    private static AbstractTensor<?, ?> tensor(float[] numbers, int rows, int columns) {
        FloatBufferTensor tensor = new FloatBufferTensor(rows, columns);
        for (int i = 0; i < numbers.length; i++) {
            tensor.set(numbers[i], i / columns, i % columns);
        }
        return tensor;
    }

    private static float[] floats(AbstractTensor<?, ?> tensor) {
        int columns = tensor.shape().last();
        float[] numbers = new float[tensor.shape().first() * columns];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = tensor.get(i / columns, i % columns);
        }
        return numbers;
    }

    private static void values(Beside beside, Context context, AbstractModel model, int n) {
        for (int rows : new int[] {1, 12}) {
            AbstractTensor<?, ?> x = tensor(Beside.numbers(1, 0.3, rows * n), rows, n);
            float[] numbers = Beside.numbers(2, 1, n);
            for (AbstractTensor<?, ?> weight : List.of(tensor(numbers, 1, n),
                    new BFloat16BufferTensor(tensor(numbers, 1, n)))) {
                for (float adjustment : new float[] {0, 1}) {
                    float[] w = floats(weight);
                    for (int i = 0; i < n; i++) {
                        w[i] += adjustment;
                    }
                    double[] wanted = Beside.norm(floats(x), w, null, false, EPS);
                    String name = rows + " rows, weight of " + weight.dType() + " + " + adjustment;
                    RMSNorm ours = new FastRmsNorm(context, model, weight, adjustment);
                    RMSNorm theirs = new RMSNorm(model, weight, adjustment);
                    double error = Beside.error(floats(ours.forward(x)), wanted);
                    double theirError = Beside.error(floats(theirs.forward(x)), wanted);
                    beside.checkError(name, error, 5e-7);
                    beside.checkError(name + ", beside jlama's", error, 1.1 * theirError + 1e-7);
                    float[] part = floats(ours.forward(x, 0, n / 2));
                    beside.check(name + ", a part of the columns",
                            java.util.Arrays.equals(part, floats(theirs.forward(x, 0, n / 2))), "");
                }
            }
            // A bf16 tensor as x, of which jlama makes an f32 result.
            AbstractTensor<?, ?> half = new BFloat16BufferTensor(x);
            RMSNorm norm = new FastRmsNorm(context, model, tensor(numbers, 1, n), 0);
            double[] wanted = Beside.norm(floats(half), numbers, null, false, EPS);
            beside.checkError("x of BF16", Beside.error(floats(norm.forward(half)), wanted), 5e-7);
        }
        AbstractTensor<?, ?> x = tensor(Beside.numbers(1, 0, 4 * n), 4, n);
        RMSNorm norm = new FastRmsNorm(context, model, tensor(Beside.numbers(2, 1, n), 1, n), 0);
        beside.checkRefused("a quantised x", "required: F32, F16 or BF16",
                () -> norm.forward(new Q8ByteBufferTensor(x)));
        beside.checkRefused("a slice of columns", "required: a whole one",
                () -> JlamaNorms.of(x.sparsify(0, n / 2)));
    }

    private static void figures(Beside beside, Context context, AbstractModel model, int rounds) {
        int n = Beside.COLUMNS;
        float[] w = Beside.numbers(7, 1, n);
        AbstractTensor<?, ?> weight = tensor(w, 1, n);
        RMSNorm ours = new FastRmsNorm(context, model, weight, 0);
        RMSNorm theirs = new RMSNorm(model, weight);
        for (int rows : new int[] {1, 256}) {
            float[] numbers = Beside.numbers(6, 0.2, rows * n);
            AbstractTensor<?, ?> x = tensor(numbers, rows, n);
            double[] wanted = Beside.norm(numbers, w, null, false, EPS);
            // Closed, a result goes back to the cache that the next one comes from.
            beside.time(rounds, "RMSNorm", rows, () -> theirs.forward(x).close(),
                    () -> ours.forward(x).close(),
                    Beside.error(floats(theirs.forward(x)), wanted),
                    Beside.error(floats(ours.forward(x)), wanted));
        }
    }

    public static void main(String[] args) throws ReflectiveOperationException {
        Beside beside = new Beside();
        try (Context context = Context.cpu()) {
            values(beside, context, model(128), 128);
            figures(beside, context, model(Beside.COLUMNS), Integer.parseInt(args[0]));
        }
        beside.finish();
    }
}
