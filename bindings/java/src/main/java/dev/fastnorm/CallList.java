package dev.fastnorm;

import java.util.Objects;

/** Several calls of one family as one. A list sees the changes that are made to its parts. */
abstract sealed class CallList extends Call permits NormBackwardList, NormList {
    private final Call[] parts;
    private Joined joined; // not volatile: its fields are final

    /** The parts' lists one after the other, and the lists that it was made from. */
    private record Joined(Description.Encoded[] from, Description.Encoded whole) {}

    CallList(Call... parts) {
        this.parts = parts;
        for (int i = 0; i < parts.length; i++) {
            Objects.requireNonNull(parts[i], "parts[" + i + "]");
        }
        NativeLibrary.load();
    }

    /** The number of parts. */
    final int count() {
        return parts.length;
    }

    @Override
    final Description.Encoded encoded() {
        Joined current = joined;
        if (current == null || !isCurrent(current)) {
            current = join();
            joined = current;
        }
        return current.whole;
    }

    private boolean isCurrent(Joined old) {
        for (int i = 0; i < parts.length; i++) {
            if (parts[i].encoded() != old.from[i]) {
                return false;
            }
        }
        return true;
    }

    private Joined join() {
        Description.Encoded[] from = new Description.Encoded[parts.length];
        String problem = null;
        int length = 0;
        for (int i = 0; i < parts.length; i++) {
            from[i] = parts[i].encoded();
            length += from[i].words().length;
            if (problem == null && from[i].problem() != null) {
                problem = "parts[" + i + "]: " + from[i].problem();
            }
        }
        long[] words = new long[length];
        int end = 0;
        for (Description.Encoded part : from) {
            System.arraycopy(part.words(), 0, words, end, part.words().length);
            end += part.words().length;
        }
        return new Joined(from, new Description.Encoded(words, problem));
    }
}
