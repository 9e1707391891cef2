package dev.fastnorm;

/**
 * The arrays of the Java heap that a call reads and writes. Native code holds them in place while
 * the call runs, and only then knows their addresses. Until then the address of a tensor in one is
 * a stand-in: the array's number plus 1, times 2^44, and the bytes from its first element.
 *
 * @param arrays each array once
 * @param places of each tensor in one: the index of its address in the list of words, and in the
 *     upper half the index of its array
 */
record HeapArrays(Object[] arrays, long[] places) {
    private static final int OFFSET_BITS = 44;

    /**
     * Numbers the arrays, and writes the stand-ins into the words.
     *
     * @param words the list, whose addresses have the offsets in their low bits
     * @param indices where they are
     * @param owners the array of each
     * @param count how many
     * @return null if there are none
     */
    static HeapArrays of(long[] words, int[] indices, Object[] owners, int count) {
        if (count == 0) {
            return null;
        }
        Object[] distinct = new Object[count];
        long[] places = new long[count];
        int found = 0;
        for (int i = 0; i < count; i++) {
            int number = 0;
            while (number < found && distinct[number] != owners[i]) {
                number++;
            }
            if (number == found) {
                distinct[found++] = owners[i];
            }
            long offset = words[indices[i]] & (1L << OFFSET_BITS) - 1;
            words[indices[i]] = (number + 1L) << OFFSET_BITS | offset;
            places[i] = indices[i] | (long) number << 32;
        }
        return new HeapArrays(java.util.Arrays.copyOf(distinct, found), places);
    }

    int count() {
        return places.length;
    }

    int index(int place) {
        return (int) places[place];
    }

    Object owner(int place) {
        return arrays[(int) (places[place] >> 32)];
    }
}
