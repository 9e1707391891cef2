package dev.fastnorm;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Supplier;

/** Several calls of one family as one. A list sees the changes that are made to its parts. */
abstract sealed class CallList extends Call permits NormBackwardList, NormList {
    private final int count;
    private final JoinedWords joined;

    CallList(Call... parts) {
        count = parts.length;
        for (int i = 0; i < count; i++) {
            Objects.requireNonNull(parts[i], "parts[" + i + "]");
        }
        List<Supplier<Description.Encoded>> sources = new ArrayList<>();
        for (Call part : parts) {
            sources.add(part::encoded);
        }
        joined = new JoinedWords(0, sources);
        NativeLibrary.load();
    }

    @Override
    final int count() {
        return count;
    }

    @Override
    final Description.Encoded encoded() {
        return joined.encoded();
    }
}
