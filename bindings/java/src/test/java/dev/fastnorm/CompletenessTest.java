package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** Every value of the headers' enums has a value or a method. {@link EncodingTest} has fields. */
class CompletenessTest {
    /** Enums that the build does not make. */
    private static final Map<String, Class<? extends Enum<?>>> BY_HAND =
            Map.of("fastnorm_dtype_id", DType.class, "fastnorm_profile_kind", Profile.Kind.class,
                    "fastnorm_status", Status.class);

    /**
     * Enums whose values are no Java enum: rms, layer, dryRun, noPdl, writeTrace, noPeers are
     * methods. Others are constants of Peer, or names that the library gives (the ids of a
     * profile). EncodingTest has the flags of calls.
     */
    private static final Set<String> METHODS = Set.of(
            "fastnorm_norm_kind=0,1", "fastnorm_context_flags=1,2", "fastnorm_trace_format=0",
            "fastnorm_peer_limits=8,128", "fastnorm_nccl_flags=1,2",
            "fastnorm_profile_id=" + IntStream.range(0, 18).mapToObj(String::valueOf)
                    .collect(Collectors.joining(",")));

    private static Set<Integer> constants(Class<?> type) {
        return Stream.of(type.getDeclaredFields()).filter(f -> Modifier.isStatic(f.getModifiers()))
                .map(field -> valueOf(field, null)).collect(Collectors.toCollection(TreeSet::new));
    }

    private static int valueOf(Field field, Object of) {
        try {
            field.setAccessible(true);
            return field.getInt(of);
        } catch (IllegalAccessException e) {
            throw new AssertionError(e);
        }
    }

    /** fastnorm_quant_scheme as QuantScheme. */
    private static Class<?> enumOf(String name) throws ClassNotFoundException {
        String own = Arrays.stream(name.split("_")).skip(1)
                .map(word -> word.substring(0, 1).toUpperCase() + word.substring(1))
                .collect(Collectors.joining());
        return BY_HAND.containsKey(name) ? BY_HAND.get(name)
                : Class.forName("dev.fastnorm." + (own.equals("PeerError") ? "PeerFailure" : own));
    }

    @TestFactory
    Stream<DynamicTest> enums() throws IOException {
        Path folder = Child.generated("java/dev/fastnorm");
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(p -> p.getFileName().toString().replace(".java", ""))
                    .filter(name -> name.matches("fastnorm_(?!.*info$).*")).sorted().toList()
                    .stream()
                    .filter(name -> !name.matches("fastnorm_(norm|peer|mla_decode).*_flags"))
                    .map(name -> DynamicTest.dynamicTest(name, () -> checkEnum(name)));
        }
    }

    private static void checkEnum(String name) throws Exception {
        Set<Integer> raw = constants(Class.forName("dev.fastnorm." + name));
        String text = name + "="
                + raw.stream().map(String::valueOf).collect(Collectors.joining(","));
        if (METHODS.contains(text)) {
            return;
        }
        Class<?> type = enumOf(name);
        Field id = type.getDeclaredField(type == Status.class ? "code" : "id");
        Set<Integer> own = new TreeSet<>();
        for (Object value : type.getEnumConstants()) {
            if (value != Status.UNKNOWN) {
                assertTrue(own.add(valueOf(id, value)), value.toString());
            }
        }
        assertEquals(raw, own);
    }
}
