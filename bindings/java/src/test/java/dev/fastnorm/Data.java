package dev.fastnorm;

import java.util.Random;

/** Tensors and values of the tests. */
final class Data {
    private Data() {}

    /** A compact CPU tensor of these values, which the dtype holds exactly. */
    static Tensor tensor(DType dtype, double[] values, long... shape) {
        Tensor tensor = Tensor.allocate(dtype, shape);
        for (int i = 0; i < values.length; i++) {
            put(tensor, i, values[i]);
        }
        return tensor;
    }

    static void put(Tensor tensor, int i, double value) {
        if (tensor.dtype() == DType.F32) {
            tensor.floats().put(i, (float) value);
        } else {
            tensor.shorts().put(i, bits16(tensor.dtype(), value));
        }
    }

    static double get(Tensor tensor, int i) {
        return tensor.dtype() == DType.F32
                ? tensor.floats().get(i)
                : value16(tensor.dtype(), tensor.shorts().get(i));
    }

    static double[] values(Tensor tensor, int from, int count) {
        double[] values = new double[count];
        for (int i = 0; i < count; i++) {
            values[i] = get(tensor, from + i);
        }
        return values;
    }

    static Tensor rows(float[] values, int rows) {
        return Tensor.copyOf(values, rows, values.length / rows);
    }

    static float[] floats(Tensor tensor) {
        float[] values = new float[tensor.floats().remaining()];
        tensor.floats().get(values);
        return values;
    }

    /** Integers of [-most, most]. */
    static double[] integers(Random random, int count, int most) {
        return random.ints(count, -most, most + 1).asDoubleStream().toArray();
    }

    /** The bits of a value that the dtype holds exactly: F16 or BF16. */
    static short bits16(DType dtype, double value) {
        int bits = Float.floatToRawIntBits((float) value);
        if (dtype == DType.BF16) {
            return (short) (bits >>> 16);
        }
        int sign = bits >>> 16 & 0x8000;
        return (short) (value == 0 ? sign
                : sign | ((bits >>> 23 & 0xff) - 112) << 10 | bits >>> 13 & 0x3ff);
    }

    static double value16(DType dtype, short bits) {
        if (dtype == DType.BF16) {
            return Float.intBitsToFloat(bits << 16);
        }
        int magnitude = bits & 0x7fff;
        float value = magnitude == 0 ? 0 : Float.intBitsToFloat((magnitude << 13) + (112 << 23));
        return bits < 0 ? -value : value;
    }
}
