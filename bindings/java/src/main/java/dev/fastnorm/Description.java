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

    /** What this one points to, by its bits behind those of tensors; null where nothing is set. */
    private Description[] nested = {};

    /** What points to this one; null for a description by itself. */
    private Description parent;

    private boolean given;
    private long others; // bits of what stands behind this one

    /** Not volatile: its fields are final, so that whichever thread sees it sees the whole list. */
    private Encoded encoded;

    /**
     * @param words the list
     * @param problem what this binding has against the call, or null
     * @param arrays those of the Java heap, or null
     */
    record Encoded(long[] words, String problem, HeapArrays arrays) {}

    /**
     * @param scalars number of fields that are no tensors
     * @param tensors number of tensors
     */
    Description(int scalars, int tensors) {
        this.scalars = new long[scalars];
        this.tensors = new Tensor[tensors];
    }

    /**
     * Makes this one point to another, which is given once a field of it is set.
     *
     * @param bit that of the pointer, behind those of all before
     * @param description the other one
     * @return the other one
     */
    Description pointsTo(int bit, Description description) {
        if (bit != tensors.length + nested.length) {
            throw new IllegalArgumentException("bit " + bit);
        }
        nested = Arrays.copyOf(nested, nested.length + 1);
        nested[nested.length - 1] = description;
        description.parent = this;
        return description;
    }

    /**
     * Makes this one point to a description that its words are followed by.
     *
     * @param bit that of the pointer
     */
    void pointsBehind(int bit) {
        others |= 1L << bit;
    }

    private void changed() {
        given = true;
        encoded = null;
        if (parent != null) {
            parent.changed();
        }
    }

    void set(int index, long value) {
        scalars[index] = value;
        changed();
    }

    void set(int index, float value) {
        set(index, Float.floatToRawIntBits(value) & 0xffffffffL);
    }

    void set(int index, int bit, boolean value) {
        set(index, value ? scalars[index] | bit : scalars[index] & ~bit);
    }

    void input(int bit, Tensor tensor) {
        tensors[bit] = tensor;
        changed();
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
    Encoded kept() {
        return encoded;
    }

    /** The list, of a family that has nothing against calls. */
    Encoded encoded() {
        Encoded current = encoded;
        return current != null ? current : encode(null);
    }

    /**
     * Makes the list.
     *
     * @param problem what the family has against the call, or null
     */
    Encoded encode(String problem) {
        int length = scalars.length + 1;
        long mask = others;
        for (int i = 0; i < tensors.length; i++) {
            if (tensors[i] != null) {
                length += tensors[i].words.length;
                mask |= 1L << i;
            }
        }
        int onHeapAtMost = tensors.length;
        Encoded[] others = new Encoded[nested.length];
        for (int i = 0; i < nested.length; i++) {
            if (nested[i].given) {
                others[i] = nested[i].encode(null);
                length += others[i].words.length;
                onHeapAtMost += others[i].arrays == null ? 0 : others[i].arrays.count();
                mask |= 1L << tensors.length + i;
            }
        }
        long[] words = Arrays.copyOf(scalars, length);
        words[scalars.length] = mask;
        int end = scalars.length + 1;
        String first = problem;
        int[] indices = new int[onHeapAtMost];
        Object[] owners = new Object[onHeapAtMost];
        int onHeap = 0;
        for (Tensor tensor : tensors) {
            if (tensor != null) {
                if (tensor.array() != null) {
                    indices[onHeap] = end;
                    owners[onHeap++] = tensor.array();
                }
                System.arraycopy(tensor.words, 0, words, end, tensor.words.length);
                end += tensor.words.length;
                first = first != null ? first : tensor.misfit;
            }
        }
        for (Encoded other : others) {
            if (other != null) {
                for (int k = 0; other.arrays != null && k < other.arrays.count(); k++) {
                    indices[onHeap] = end + other.arrays.index(k);
                    owners[onHeap++] = other.arrays.owner(k);
                }
                System.arraycopy(other.words, 0, words, end, other.words.length);
                end += other.words.length;
                first = first != null ? first : other.problem;
            }
        }
        Encoded made = new Encoded(words, first,
                HeapArrays.of(words, indices, owners, onHeap));
        encoded = made;
        return made;
    }
}
