package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Each setter of each call changes one field, which is its own, and every field has a setter. */
class EncodingTest {
    private static Context context;
    private static Peer peer;

    @BeforeAll
    static void open() {
        context = Context.cpu();
        peer = Peer.builder(context, 0, 2, DType.F32, 8).create();
    }

    @AfterAll
    static void close() {
        peer.close();
        context.close();
    }

    /**
     * A class with setters.
     *
     * @param prefix its words' names begin with it
     * @param begin makes one of which no setter was called
     * @param flags the bits of its flags
     * @param byHand what methods that are written by hand set
     */
    private record Kind(String prefix, Supplier<Object> begin, List<Class<?>> flags,
            List<Set> byHand) {}

    /** A call, and its fields that are not 0. */
    private record Set(Object call, Map<String, Long> fields) {}

    private static Set set(Object call, Object... fields) {
        Map<String, Long> wanted = new TreeMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            wanted.put((String) fields[i], ((Number) fields[i + 1]).longValue());
        }
        return new Set(call, wanted);
    }

    private static long bits(double value) {
        return Float.floatToRawIntBits((float) value) & 0xffffffffL;
    }

    private static final long AT = 0x1000;

    private static Tensor tensor(int number) {
        return Tensor.at(Device.cuda(7), AT + number, DType.BF16, 3, 4).withStrides(-9, 1);
    }

    private static List<Kind> kinds() {
        long own = PeerCall.addressOf(peer);
        Norm norm = Norm.layer(2);
        List<Class<?>> ofParts = List.of(fastnorm_norm_heads_part_flags.class,
                fastnorm_norm_heads_backward_flags.class);
        return List.of(
                new Kind("NORM", () -> Norm.rms(0), List.of(fastnorm_norm_flags.class),
                        List.of(set(Norm.layer(2), "KIND", 1, "EPS", bits(2)),
                                set(Norm.rms(0).xInPlace(tensor(1)), "X", AT + 1, "Y", AT + 1),
                                set(Norm.rms(0).residualInPlace(tensor(1)), "RESIDUAL", AT + 1,
                                        "RESIDUAL_OUT", AT + 1),
                                set(Norm.rms(0).branchLayer(3), "BRANCH_NORM", 1, "BRANCH_KIND", 1,
                                        "BRANCH_EPS", bits(3)),
                                set(Norm.layer(0).branchRms(3), "KIND", 1, "BRANCH_NORM", 1,
                                        "BRANCH_EPS", bits(3)),
                                set(Norm.rms(0).branchLayer(3).branchNone()),
                                set(Norm.rms(0).alpha(4), "FLAGS", 16, "ALPHA", bits(4)),
                                set(Norm.rms(0).alpha(0), "FLAGS", 16),
                                set(Norm.rms(0).alpha(4).alpha(1)))),
                new Kind("NORM_BACKWARD", () -> NormBackward.rms(0),
                        List.of(fastnorm_norm_backward_flags.class),
                        List.of(set(NormBackward.layer(2), "KIND", 1, "EPS", bits(2)),
                                set(NormBackward.rms(0).branchLayer(3), "BRANCH_NORM", 1,
                                        "BRANCH_KIND", 1, "BRANCH_EPS", bits(3)),
                                set(NormBackward.rms(0).branchRms(3), "BRANCH_NORM", 1,
                                        "BRANCH_EPS", bits(3)),
                                set(NormBackward.rms(0).alpha(4), "FLAGS", 256, "ALPHA", bits(4)),
                                set(NormBackward.rms(0).alpha(4).alpha(1)))),
                new Kind("NORM_HEADS", () -> NormHeads.of(),
                        List.of(fastnorm_norm_heads_flags.class),
                        List.of(set(NormHeads.of().rope(6, tensor(1), tensor(2)), "ROPE_DIM", 6,
                                "COS", AT + 1, "SIN", AT + 2),
                                set(NormHeads.of().mrope(1, 2, 3, 4), "MROPE_0", 1, "MROPE_1", 2,
                                        "MROPE_2", 3, "MROPE_3", 4),
                                set(NormHeads.of().mrope(1, 2, 3, 4).mrope(5), "MROPE_0", 5))),
                new Kind("NORM_HEADS_PART", () -> NormHeadsPart.of(null),
                        List.of(fastnorm_norm_heads_part_flags.class),
                        List.of(set(NormHeadsPart.of(tensor(1)), "X", AT + 1),
                                set(NormHeadsPart.of(null).rms(2), "FLAGS", 1, "EPS", bits(2)),
                                set(NormHeadsPart.of(null).layer(2), "FLAGS", 1, "KIND", 1, "EPS",
                                        bits(2)),
                                set(NormHeadsPart.of(null).rope(), "FLAGS", 2),
                                set(NormHeadsPart.of(null).rope(-1), "FLAGS", 2, "ROPE_OFFSET",
                                        -1))),
                new Kind("NORM_HEADS_BACKWARD", () -> NormHeadsBackward.of(),
                        List.of(fastnorm_norm_heads_flags.class),
                        List.of(set(NormHeadsBackward.of().rope(6, tensor(1), tensor(2)),
                                "ROPE_DIM", 6, "COS", AT + 1, "SIN", AT + 2),
                                set(NormHeadsBackward.of().mrope(1, 2, 3, 4), "MROPE_0", 1,
                                        "MROPE_1", 2, "MROPE_2", 3, "MROPE_3", 4))),
                new Kind("NORM_HEADS_BACKWARD_PART", () -> NormHeadsBackwardPart.of(null),
                        ofParts,
                        List.of(set(NormHeadsBackwardPart.of(tensor(1)), "DY", AT + 1),
                                set(NormHeadsBackwardPart.of(null).rms(2, tensor(1)), "FLAGS", 1,
                                        "EPS", bits(2), "X", AT + 1),
                                set(NormHeadsBackwardPart.of(null).layer(2, tensor(1)), "FLAGS", 1,
                                        "KIND", 1, "EPS", bits(2), "X", AT + 1),
                                set(NormHeadsBackwardPart.of(null).rope(), "FLAGS", 2),
                                set(NormHeadsBackwardPart.of(null).rope(-1), "FLAGS", 2,
                                        "ROPE_OFFSET", -1))),
                new Kind("MLA_DECODE", () -> MlaDecode.of(0),
                        List.of(fastnorm_mla_decode_flags.class),
                        List.of(set(MlaDecode.of(0.3), "SM_SCALE", Double.doubleToLongBits(0.3)),
                                set(MlaDecode.of(0).qoIndptr(tensor(1), 5), "QO_INDPTR", AT + 1,
                                        "MAX_S_Q", 5),
                                set(MlaDecode.of(0).profile(tensor(1), 77), "PROFILE", AT + 1,
                                        "PROFILE_EVENTS", 77))),
                new Kind("PEER_SHARDED_NORM", () -> PeerShardedNorm.rms(peer, 0),
                        List.of(fastnorm_norm_flags.class),
                        List.of(set(PeerShardedNorm.layer(peer, 2), "PEER", own, "KIND", 1, "EPS",
                                bits(2)))),
                new Kind("PEER_ALLREDUCE_NORM", () -> PeerAllreduceNorm.of(peer, Norm.rms(0)),
                        List.of(),
                        List.of(set(PeerAllreduceNorm.of(peer, norm), "PEER", own, "NORM.KIND", 1,
                                "NORM.EPS", bits(2)))));
    }

    /** What Java does not set: other calls' flags, and slots, which are the forward's alone. */
    private static final Map<String, String> NOT_SET = Map.of(
            "NORM_HEADS_BACKWARD_PART", "FLAGS=16", // turning back of rounded values is the same
            "NORM_HEADS_BACKWARD", "SLOTS",
            "PEER_SHARDED_NORM", "FLAGS=8 FLAGS=16",
            "NORM_HEADS_PART", "CACHE_QUANT.SCALE_LAYOUT CACHE_QUANT.CLAMP CACHE_QUANT.QUANTIZED "
                    + "CACHE_QUANT.GLOBAL_SCALE CACHE_QUANT.CLAMP_SCALE CACHE_QUANT.AMAX "
                    + "CACHE_QUANT.Y_ROTATED");

    // --- the words ---

    private static int valueOf(Field field) {
        try {
            return field.getInt(null);
        } catch (IllegalAccessException e) {
            throw new AssertionError(e);
        }
    }

    private static int word(String name) {
        try {
            return valueOf(Words.class.getDeclaredField(name));
        } catch (NoSuchFieldException e) {
            throw new AssertionError(e);
        }
    }

    /** The descriptions that words are named for: NORM, NORM_HEADS, and so on. */
    static List<String> prefixes() {
        return Stream.of(Words.class.getDeclaredFields()).map(Field::getName)
                .filter(name -> name.endsWith("_MAX_WORDS"))
                .map(name -> name.substring(0, name.length() - "_MAX_WORDS".length())).toList();
    }

    /** Words of a description by name: scalars, and bits of the mask as BIT_NAME. */
    private static Map<String, Integer> namesOf(String prefix) {
        Map<String, Integer> names = new LinkedHashMap<>();
        for (Field field : Words.class.getDeclaredFields()) {
            String name = field.getName();
            String owner = prefixes().stream().filter(p -> name.startsWith(p + "_"))
                    .max(Comparator.comparingInt(String::length)).orElse("");
            if (owner.equals(prefix) && !name.matches(".*_(MASK|TENSORS|MAX_WORDS)")) {
                names.put(name.substring(prefix.length() + 1), valueOf(field));
            }
        }
        return names;
    }

    /** What a field that is no tensor points to. */
    private static String pointed(String field) {
        return field.endsWith("QUANT") ? "QUANT" : field;
    }

    /**
     * Reads one description.
     *
     * @param fields receives those that are not 0: numbers, and the addresses of tensors
     * @return where the next description begins
     */
    private static int read(String prefix, long[] words, int from, String path,
            Map<String, Long> fields) {
        Map<String, Integer> names = namesOf(prefix);
        int mask = word(prefix + "_MASK");
        String[] bits = new String[64];
        names.forEach((name, index) -> {
            if (name.startsWith("BIT_")) {
                bits[index] = name.substring("BIT_".length());
            } else if (words[from + index] != 0) {
                fields.put(path + name, words[from + index]);
            }
        });
        int at = from + mask + 1;
        for (int bit = 0; bit < 64; bit++) {
            if ((words[from + mask] >> bit & 1) == 0) {
                continue;
            }
            if (bit < word(prefix + "_TENSORS")) {
                fields.put(path + bits[bit], words[at]);
                int rank = (int) (words[at + 2] & 0x7fffffff);
                boolean strided = (words[at + 2] >> 31 & 1) == 1;
                at += Words.TENSOR_WORDS + (strided ? 2 * rank : rank);
            } else {
                at = read(pointed(bits[bit]), words, at, path + bits[bit] + ".", fields);
            }
        }
        return at;
    }

    private static Map<String, Long> fieldsOf(String prefix, Object call) {
        long[] words;
        try {
            Method encoded = call.getClass().getDeclaredMethod("encoded");
            encoded.setAccessible(true);
            words = ((Description.Encoded) encoded.invoke(call)).words();
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
        Map<String, Long> fields = new TreeMap<>();
        assertEquals(words.length, read(prefix, words, 0, "", fields));
        return fields;
    }

    /** All fields of a description, with those of what it points to and is not a call. */
    private static TreeSet<String> all(String prefix, String path) {
        TreeSet<String> found = new TreeSet<>();
        for (String name : namesOf(prefix).keySet()) {
            String field = name.replaceFirst("^BIT_", "");
            if (field.endsWith("QUANT")) {
                found.addAll(all("QUANT", path + field + "."));
            } else if (!field.matches("PARALLEL_USER|(\\w+_)?RESERVED|FLAGS")) {
                found.add(path + field);
            }
        }
        return found;
    }

    // --- the setters ---

    private static Object call(Object on, Method setter, Object value) {
        try {
            return setter.invoke(on, value);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof RuntimeException thrown) {
                throw thrown;
            }
            throw new AssertionError(e.getCause());
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    private static String snake(String name) {
        return name.replaceAll("([A-Z])", "_$1").toUpperCase();
    }

    /** A value that is not the default one. */
    private static Object sample(Class<?> type, int number) {
        if (type == Tensor.class) {
            return tensor(number);
        }
        if (type.isEnum()) {
            return type.getEnumConstants()[type.getEnumConstants().length - 1];
        }
        return type == boolean.class ? (Object) true : type == int.class ? (Object) (-5 - number)
                : type == long.class ? (Object) ((1L << 40) + number) : (Object) (2.5 + number);
    }

    /** The words that a value may be. */
    private static List<Long> words(Object value) throws ReflectiveOperationException {
        if (value instanceof Tensor tensor) {
            return List.of(tensor.address());
        }
        if (value instanceof Enum<?>) {
            return List.of((long) value.getClass().getDeclaredField("id").getInt(value));
        }
        if (value instanceof Double number) {
            return List.of(bits(number), Double.doubleToLongBits(number));
        }
        return List.of(value instanceof Boolean ? 1L : ((Number) value).longValue());
    }

    /** The bit of a flag, by the setter's name. */
    private static long bit(Kind kind, String setter) {
        return kind.flags.stream().flatMap(type -> Stream.of(type.getDeclaredFields()))
                .filter(f -> f.getName().endsWith("_" + snake(setter)))
                .min(Comparator.comparingInt(f -> f.getName().length()))
                .map(EncodingTest::valueOf).orElseThrow(() -> new AssertionError(setter));
    }

    /** Calls a setter; which field it sets, or which bit of the flags. */
    private static String place(Kind kind, Method setter, int number)
            throws ReflectiveOperationException {
        Class<?> type = setter.getParameterTypes()[0];
        Object value = sample(type, number);
        Object call = kind.begin.get();
        Map<String, Long> before = fieldsOf(kind.prefix, call);
        assertEquals(call, call(call, setter, value), setter.getName());
        Map<String, Long> after = fieldsOf(kind.prefix, call);
        if (type == Tensor.class || type == boolean.class) {
            call(call, setter, type == Tensor.class ? null : false);
            assertEquals(before, fieldsOf(kind.prefix, call), setter.getName());
        }
        after.entrySet().removeAll(before.entrySet());
        assertEquals(1, after.size(), setter.getName() + " sets " + after);
        Map.Entry<String, Long> changed = after.entrySet().iterator().next();
        if (changed.getKey().equals("FLAGS")) {
            assertEquals(bit(kind, setter.getName()), changed.getValue(), setter.getName());
            return "FLAGS=" + changed.getValue();
        }
        assertTrue(words(value).contains(changed.getValue()), setter.getName());
        List<String> of = List.of(changed.getKey().split("[_.]"));
        assertTrue(of.containsAll(List.of(snake(setter.getName()).split("_"))),
                setter.getName() + " sets " + changed.getKey());
        return changed.getKey();
    }

    private static List<Method> settersOf(Kind kind) {
        return Stream.of(kind.begin.get().getClass().getSuperclass().getDeclaredMethods())
                .filter(m -> Modifier.isPublic(m.getModifiers())).toList();
    }

    @TestFactory
    Stream<DynamicTest> everySetterHasItsField() {
        return kinds().stream().map(kind -> DynamicTest.dynamicTest(kind.prefix, () -> {
            TreeSet<String> places = new TreeSet<>();
            int number = 1;
            for (Method setter : settersOf(kind)) {
                String place = place(kind, setter, number++);
                assertTrue(places.add(place), setter.getName() + " sets " + place + ", too");
            }
            for (Set set : kind.byHand) {
                Map<String, Long> found = fieldsOf(kind.prefix, set.call);
                assertEquals(set.fields, found);
                found.forEach((name, value) -> {
                    for (long bit = 1; name.equals("FLAGS") && bit <= value; bit *= 2) {
                        if ((value & bit) != 0) {
                            places.add("FLAGS=" + bit);
                        }
                    }
                });
                found.keySet().removeIf(name -> name.equals("FLAGS") || name.startsWith("NORM."));
                places.addAll(found.keySet());
            }
            places.addAll(Arrays.asList(NOT_SET.getOrDefault(kind.prefix, "").split(" ")));
            places.remove("");
            TreeSet<String> wanted = all(kind.prefix, "");
            wanted.remove("NORM"); // what an all-reduce points to is a call of its own
            kind.flags.stream().flatMap(type -> Stream.of(type.getDeclaredFields()))
                    .forEach(f -> wanted.add("FLAGS=" + valueOf(f)));
            assertEquals(wanted, places);
        }));
    }

    /** What src/schema/fields.csv says that a call writes. */
    private static List<String> outputs(String struct) throws IOException {
        return Files.readAllLines(Child.source("../../src/schema/fields.csv")).stream()
                .map(line -> line.split(",")).filter(row -> row[0].equals(struct))
                .filter(row -> row[2].endsWith("out")).map(row -> row[1]).toList();
    }

    @TestFactory
    Stream<DynamicTest> outputsRefuseReadOnlyMemory() {
        ByteBuffer memory = ByteBuffer.allocateDirect(64).asReadOnlyBuffer();
        Tensor fixed = Tensor.of(memory.order(ByteOrder.nativeOrder()), DType.F32, 2, 2);
        return kinds().stream().map(kind -> DynamicTest.dynamicTest(kind.prefix, () -> {
            String struct = kind.prefix.toLowerCase();
            TreeSet<String> wanted = new TreeSet<>(
                    outputs(struct.endsWith("_part") ? struct : struct + "_args"));
            wanted.addAll(namesOf(kind.prefix).containsKey("BIT_QUANT") ? outputs("quant")
                    : List.of());
            wanted.remove("profile"); // set with its number of events, by hand
            TreeSet<String> refusing = new TreeSet<>();
            for (Method setter : settersOf(kind)) {
                if (setter.getParameterTypes()[0] == Tensor.class) {
                    String name = snake(setter.getName()).toLowerCase();
                    try {
                        call(kind.begin.get(), setter, fixed);
                    } catch (IllegalArgumentException e) {
                        assertTrue(e.getMessage().matches("(quant\\.)?" + name + " is written and "
                                + "its buffer is read-only; required: a writable one"));
                        refusing.add(name);
                    }
                }
            }
            assertEquals(wanted, refusing);
        }));
    }

    /** Each family of the raw layer is one that the tests above know. */
    @Test
    void families() {
        List<String> known = kinds().stream().map(Kind::prefix).toList();
        assertEquals(List.of("QUANT"),
                prefixes().stream().filter(prefix -> !known.contains(prefix)).toList());
    }

    // --- more than a field ---

    @Test
    void tensorsHaveTheirDeviceTypeAndStrides() {
        long[] words = Norm.rms(0).x(tensor(1)).encoded().words();
        int x = Words.NORM_MASK + 1;
        assertArrayEquals(new long[] {AT + 1, 2 | 7L << 32,
            2 | 1L << 31 | (long) DType.BF16.id << 32, 0, 3, 4, -9, 1},
                Arrays.copyOfRange(words, x, words.length));
    }

    @Test
    void partsAreBehindWhatTheyShare() {
        NormHeadsPart part = NormHeadsPart.of(tensor(1)).y(tensor(2));
        NormHeads call = NormHeads.of(part, part).positions(tensor(3));
        long[] one = part.encoded().words();
        long[] words = call.encoded().words();
        int own = words.length - 2 * one.length;
        assertEquals(own, read("NORM_HEADS", words, 0, "", new TreeMap<>()));
        assertArrayEquals(one, Arrays.copyOfRange(words, own, own + one.length));
        assertArrayEquals(one, Arrays.copyOfRange(words, own + one.length, words.length));
    }

    /** A defect of the encoder ends in an error of the binding, not in a wild read. */
    @Test
    void malformedWords() {
        long handle = Context.acquire(context);
        try {
            long[] words = Norm.rms(0).x(Tensor.allocate(DType.F32, 1, 4)).encoded().words();
            int all = words.length;
            for (int length : new int[] {0, 1, Words.NORM_MASK, all - 1, all + 1, 5000}) {
                long[] other = Arrays.copyOf(words, length);
                AssertionError thrown = assertThrows(AssertionError.class,
                        () -> Raw.fnb_norm(handle, other, 0, 0, 0));
                assertEquals("the binding made a malformed list of words", thrown.getMessage());
            }
        } finally {
            Context.release(context);
        }
    }
}
