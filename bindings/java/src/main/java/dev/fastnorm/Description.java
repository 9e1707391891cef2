package dev.fastnorm;

import java.util.Arrays;

/**
 * One fastnorm_*_args as the native code takes it: a list of words, whose layout Words names.
 * Nothing here knows a family; the classes that users see set the fields by index.
 *
 * <p>The first call after a change makes the list, and later calls reuse it. A description that
 * does not change costs nothing to run again, on any number of threads.
 */
final class Description {
    private final long[] scalars;
    private final Tensor[] tensors;

    /** Not volatile: its fields are final, so that whichever thread sees it sees the whole list. */
    private Encoded encoded;

    /**
     * @param words the list
     * @param problem what this binding has against the call, or null
     */
    record Encoded(long[] words, String problem) {}

    /**
     * @param scalars number of fields that are no tensors
     * @param maxWords the most words of a description
     */
    Description(int scalars, int maxWords) {
        this.scalars = new long[scalars];
        tensors = new Tensor[(maxWords - scalars - 1) / (Words.TENSOR_WORDS + 2 * Words.MAX_RANK)];
    }

    void set(int index, long value) {
        scalars[index] = value;
        encoded = null;
    }

    void set(int index, float value) {
        set(index, Float.floatToRawIntBits(value) & 0xffffffffL);
    }

    void set(int index, int bit, boolean value) {
        set(index, value ? scalars[index] | bit : scalars[index] & ~bit);
    }

    void input(int bit, Tensor tensor) {
        tensors[bit] = tensor;
        encoded = null;
    }

    void output(int bit, String name, Tensor tensor) {
        if (tensor != null && tensor.isReadOnly()) {
            throw new IllegalArgumentException(readOnly(name));
        }
        input(bit, tensor);
    }

    static String readOnly(String name) {
        return name + " is written and its buffer is read-only; required: a writable one";
    }

    /**
     * What speaks against a tensor of scales: it is read-only, and written by every scheme but
     * PER_TENSOR.
     *
     * @param scheme index of the scheme
     * @return the problem, or null
     */
    String readOnlyScale(int bit, String name, int scheme) {
        boolean isInput = scalars[scheme] == fastnorm_quant_scheme.FASTNORM_QUANT_PER_TENSOR;
        return tensors[bit] != null && tensors[bit].isReadOnly() && !isInput ? readOnly(name)
                : null;
    }

    /** The list; null after a change. */
    Encoded encoded() {
        return encoded;
    }

    /**
     * Makes the list.
     *
     * @param problem what the family has against the call, or null
     */
    Encoded encode(String problem) {
        int length = scalars.length + 1;
        long mask = 0;
        for (int i = 0; i < tensors.length; i++) {
            if (tensors[i] != null) {
                length += tensors[i].words.length;
                mask |= 1L << i;
            }
        }
        long[] words = Arrays.copyOf(scalars, length);
        words[scalars.length] = mask;
        int end = scalars.length + 1;
        String first = problem;
        for (Tensor tensor : tensors) {
            if (tensor != null) {
                System.arraycopy(tensor.words, 0, words, end, tensor.words.length);
                end += tensor.words.length;
                first = first != null ? first : tensor.misfit;
            }
        }
        Encoded made = new Encoded(words, first);
        encoded = made;
        return made;
    }
}
