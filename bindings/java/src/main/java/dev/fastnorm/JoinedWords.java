package dev.fastnorm;

import java.util.List;
import java.util.function.Supplier;

/** The lists of several descriptions as one, which is made again when a description has changed. */
final class JoinedWords {
    private final int shared;
    private final List<Supplier<Description.Encoded>> sources;
    private Joined joined; // not volatile: its fields are final

    /** The whole, and the lists that it was made from. */
    private record Joined(Description.Encoded[] from, Description.Encoded whole) {}

    /**
     * @param shared how many of the sources are no parts, which have the numbers behind them
     * @param sources the descriptions, in their order
     */
    JoinedWords(int shared, List<Supplier<Description.Encoded>> sources) {
        this.shared = shared;
        this.sources = sources;
    }

    Description.Encoded encoded() {
        Joined current = joined;
        if (current == null || !isCurrent(current)) {
            current = join();
            joined = current;
        }
        return current.whole;
    }

    private boolean isCurrent(Joined old) {
        for (int i = 0; i < old.from.length; i++) {
            if (sources.get(i).get() != old.from[i]) {
                return false;
            }
        }
        return true;
    }

    private Joined join() {
        Description.Encoded[] from = new Description.Encoded[sources.size()];
        String problem = null;
        int length = 0;
        int onHeap = 0;
        for (int i = 0; i < from.length; i++) {
            from[i] = sources.get(i).get();
            length += from[i].words().length;
            onHeap += from[i].arrays() == null ? 0 : from[i].arrays().count();
            if (problem == null && from[i].problem() != null) {
                problem = (i < shared ? "" : "parts[" + (i - shared) + "]: ") + from[i].problem();
            }
        }
        long[] words = new long[length];
        int[] indices = new int[onHeap];
        Object[] owners = new Object[onHeap];
        onHeap = 0;
        int end = 0;
        for (Description.Encoded part : from) {
            for (int i = 0; part.arrays() != null && i < part.arrays().count(); i++) {
                indices[onHeap] = end + part.arrays().index(i);
                owners[onHeap++] = part.arrays().owner(i);
            }
            System.arraycopy(part.words(), 0, words, end, part.words().length);
            end += part.words().length;
        }
        return new Joined(from, new Description.Encoded(words, problem,
                HeapArrays.of(words, indices, owners, onHeap)));
    }
}
