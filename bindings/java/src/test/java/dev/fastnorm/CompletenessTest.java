package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The public classes have every value and every field that the generated ones have. */
class CompletenessTest {
    private static final Map<String, Class<? extends Enum<?>>> ENUMS = Map.ofEntries(
            Map.entry("fastnorm_dtype_id", DType.class),
            Map.entry("fastnorm_device_type", DeviceType.class),
            Map.entry("fastnorm_log_level", LogLevel.class),
            Map.entry("fastnorm_lse_base", LseBase.class),
            Map.entry("fastnorm_profile_kind", Profile.Kind.class),
            Map.entry("fastnorm_rounding", Rounding.class),
            Map.entry("fastnorm_rope_rounding", RopeRounding.class),
            Map.entry("fastnorm_residual_rounding", ResidualRounding.class),
            Map.entry("fastnorm_quant_scheme", QuantScheme.class),
            Map.entry("fastnorm_quant_source", QuantSource.class),
            Map.entry("fastnorm_quant_division", QuantDivision.class),
            Map.entry("fastnorm_scale_layout", ScaleLayout.class),
            Map.entry("fastnorm_activation", Activation.class),
            Map.entry("fastnorm_gate_position", GatePosition.class),
            Map.entry("fastnorm_gate_source", GateSource.class),
            Map.entry("fastnorm_sum_rounding", SumRounding.class),
            Map.entry("fastnorm_modulation_rounding", ModulationRounding.class),
            Map.entry("fastnorm_peer_algorithm", PeerAlgorithm.class),
            Map.entry("fastnorm_peer_sum_rounding", PeerSumRounding.class),
            Map.entry("fastnorm_peer_error", PeerFailure.class));

    /**
     * Enums whose values are no Java enum. Most are methods: rms, layer, dryRun, pdlWait, rope,
     * accumulateDweight, mropeInterleaved, writeTrace, noPeers. Others are constants of Peer, or
     * names that the library gives (the ids of a profile).
     */
    private static final Set<String> METHODS = Set.of(
            "fastnorm_norm_kind=0,1", "fastnorm_context_flags=1", "fastnorm_norm_flags=1,2,4,8",
            "fastnorm_norm_backward_flags=1,2,8,16,32,64,128", "fastnorm_trace_format=0",
            "fastnorm_norm_heads_flags=8", "fastnorm_norm_heads_part_flags=1,2,4,8,16,32",
            "fastnorm_norm_heads_backward_flags=64,128", "fastnorm_peer_limits=8,128",
            "fastnorm_nccl_flags=1,2",
            "fastnorm_profile_id=" + Stream.iterate(0, i -> i + 1).limit(18).map(String::valueOf)
                    .collect(Collectors.joining(",")));

    private static Set<Integer> constants(Class<?> type) {
        return Stream.of(type.getDeclaredFields()).filter(f -> Modifier.isStatic(f.getModifiers()))
                .map(CompletenessTest::valueOf).collect(Collectors.toCollection(TreeSet::new));
    }

    private static int valueOf(Field field) {
        try {
            return field.getInt(null);
        } catch (IllegalAccessException e) {
            throw new AssertionError(e);
        }
    }

    @TestFactory
    Stream<DynamicTest> enums() throws IOException {
        Path folder = Child.source("src/main/generated/dev/fastnorm");
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(p -> p.getFileName().toString().replace(".java", ""))
                    .filter(name -> name.startsWith("fastnorm_")).sorted().toList().stream()
                    .filter(name -> !name.endsWith("info"))
                    .map(name -> DynamicTest.dynamicTest(name, () -> checkEnum(name)));
        }
    }

    private static void checkEnum(String name) throws Exception {
        Set<Integer> raw = constants(Class.forName("dev.fastnorm." + name));
        Class<? extends Enum<?>> type =
                name.equals("fastnorm_status") ? Status.class : ENUMS.get(name);
        if (type == null) {
            String text = name + "="
                    + raw.stream().map(String::valueOf).collect(Collectors.joining(","));
            assertTrue(METHODS.contains(text), text);
            return;
        }
        Field id = type.getDeclaredField(type == Status.class ? "code" : "id");
        id.setAccessible(true);
        Set<Integer> own = new TreeSet<>();
        for (Enum<?> value : type.getEnumConstants()) {
            if (value != Status.UNKNOWN) {
                own.add(id.getInt(value));
            }
        }
        assertEquals(raw, own);
    }

    /** Every scalar and every tensor is set by a method of Norm, at its own place. */
    @Test
    void fieldsOfANorm() throws Exception {
        Map<String, Long> scalars = new LinkedHashMap<>();
        scalars.put("KIND", 1L);
        scalars.put("EPS", (long) Float.floatToIntBits(2));
        scalars.put("WEIGHT_OFFSET", (long) Float.floatToIntBits(3));
        scalars.put("ROUNDING", (long) Rounding.EVERY_STEP.id);
        scalars.put("RESIDUAL_ROUNDING", (long) ResidualRounding.ROUND_BEFORE_STATISTICS.id);
        scalars.put("FLAGS", 15L);
        scalars.put("QUANT_SCHEME", (long) QuantScheme.NVFP4.id);
        scalars.put("QUANT_BLOCK_SIZE", 128L);
        scalars.put("QUANT_SOURCE", (long) QuantSource.ROUNDED.id);
        scalars.put("SCALE_LAYOUT", (long) ScaleLayout.SWIZZLED_128X4.id);
        scalars.put("SCALE_POW2", 1L);
        scalars.put("AMAX_FLOOR", (long) Float.floatToIntBits(5));
        scalars.put("CLAMP", (long) Float.floatToIntBits(6));
        scalars.put("QUANT_DIVISION", (long) QuantDivision.DIVIDE.id);
        scalars.put("GATE_ACT", (long) Activation.SILU.id);
        scalars.put("GATE_POSITION", (long) GatePosition.BEFORE_NORM.id);
        scalars.put("GATE_SOURCE", (long) GateSource.ROUNDED.id);
        scalars.put("ACTIVATION", (long) Activation.SIGMOID.id);
        scalars.put("GROUP_SIZE", 1L << 32);
        scalars.put("BRANCH_NORM", 1L);
        scalars.put("BRANCH_KIND", 1L);
        scalars.put("BRANCH_EPS", (long) Float.floatToIntBits(7));
        scalars.put("BRANCH_WEIGHT_OFFSET", (long) Float.floatToIntBits(8));
        scalars.put("BRANCH_ROUNDING", (long) Rounding.EVERY_STEP.id);
        scalars.put("BRANCH_ROUNDED", 1L);
        scalars.put("ALPHA", (long) Float.floatToIntBits(9));
        scalars.put("SUM_ROUNDING", (long) SumRounding.EVERY_STEP.id);
        scalars.put("RESIDUAL_GATE_ACT", (long) Activation.TANH.id);
        scalars.put("MODULATION_ROUNDING", (long) ModulationRounding.EVERY_STEP.id);
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (String name : new String[] {"X", "RESIDUAL", "WEIGHT", "BIAS", "Y", "RESIDUAL_OUT",
            "MEAN", "RSTD", "GLOBAL_SCALE", "QUANTIZED", "SCALE", "AMAX", "CLAMP_SCALE", "GATE",
            "SUMSQ", "MEAN_IN", "RSTD_IN", "BRANCH_WEIGHT", "BRANCH_BIAS", "BRANCH_RSTD",
            "SUM_SCALE", "RESIDUAL_GATE", "RESIDUAL_GATE_TABLE", "MODULATION_SCALE", "SCALE_TABLE",
            "MODULATION_SHIFT", "SHIFT_TABLE", "MODULATION_INDEX"}) {
            tensors.put(name, strided(tensors.size()));
        }
        Norm norm = Norm.layer(2).weightOffset(3).rounding(Rounding.EVERY_STEP)
                .residualRounding(ResidualRounding.ROUND_BEFORE_STATISTICS)
                .pdlWait(true).pdlTrigger(true).pdlConstantWeights(true)
                .quantScheme(QuantScheme.NVFP4).quantBlockSize(128).quantSource(QuantSource.ROUNDED)
                .scaleLayout(ScaleLayout.SWIZZLED_128X4).scalePow2(true).amaxFloor(5).clamp(6)
                .quantDivision(QuantDivision.DIVIDE)
                .x(tensors.get("X")).residual(tensors.get("RESIDUAL"))
                .weight(tensors.get("WEIGHT")).bias(tensors.get("BIAS"))
                .y(tensors.get("Y")).residualOut(tensors.get("RESIDUAL_OUT"))
                .mean(tensors.get("MEAN")).rstd(tensors.get("RSTD"))
                .globalScale(tensors.get("GLOBAL_SCALE")).quantized(tensors.get("QUANTIZED"))
                .scale(tensors.get("SCALE")).amax(tensors.get("AMAX"))
                .clampScale(tensors.get("CLAMP_SCALE"))
                .gate(tensors.get("GATE")).gateAct(Activation.SILU)
                .gatePosition(GatePosition.BEFORE_NORM).gateSource(GateSource.ROUNDED)
                .activation(Activation.SIGMOID).groupSize(1L << 32).sumsq(tensors.get("SUMSQ"))
                .meanIn(tensors.get("MEAN_IN")).rstdIn(tensors.get("RSTD_IN"))
                .branchLayer(7).branchWeightOffset(8).branchRounding(Rounding.EVERY_STEP)
                .branchRounded(true).branchWeight(tensors.get("BRANCH_WEIGHT"))
                .branchBias(tensors.get("BRANCH_BIAS")).branchRstd(tensors.get("BRANCH_RSTD"))
                .alpha(9).sumScale(tensors.get("SUM_SCALE")).sumRounding(SumRounding.EVERY_STEP)
                .residualGate(tensors.get("RESIDUAL_GATE")).residualGateAct(Activation.TANH)
                .residualGateTable(tensors.get("RESIDUAL_GATE_TABLE"))
                .modulationScale(tensors.get("MODULATION_SCALE"))
                .scaleTable(tensors.get("SCALE_TABLE")).modulationPlainScale(true)
                .modulationShift(tensors.get("MODULATION_SHIFT"))
                .shiftTable(tensors.get("SHIFT_TABLE"))
                .modulationIndex(tensors.get("MODULATION_INDEX"))
                .modulationRounding(ModulationRounding.EVERY_STEP);
        long[] words = norm.encoded().words();
        assertEquals(words.length, checkFields("NORM_", words, tensors, scalars));
        int x = Words.NORM_MASK + 1;
        assertEquals(2 | 7L << 32, words[x + 1]);
        assertEquals(2 | 1L << 31 | (long) DType.BF16.id << 32, words[x + 2]);
        assertEquals(0, words[x + 3]);
        long[] shapeAndStrides = java.util.Arrays.copyOfRange(words, x + 4, x + 8);
        assertArrayEquals(new long[] {3, 4, -9, 1}, shapeAndStrides);
    }

    /** Every scalar and every tensor is set by a method of NormBackward, at its own place. */
    @Test
    void fieldsOfANormBackward() throws Exception {
        Map<String, Long> scalars = new LinkedHashMap<>(Map.of(
                "KIND", 1L,
                "EPS", (long) Float.floatToIntBits(2),
                "WEIGHT_OFFSET", (long) Float.floatToIntBits(3),
                "ROUNDING", (long) Rounding.EVERY_STEP.id,
                "FLAGS", 251L,
                "RESERVED", 0L));
        scalars.putAll(Map.of(
                "GATE_ACT", (long) Activation.TANH.id,
                "GATE_POSITION", (long) GatePosition.BEFORE_NORM.id,
                "GATE_SOURCE", (long) GateSource.ROUNDED.id,
                "STAGE_RESERVED", 0L,
                "GROUP_SIZE", 32L));
        scalars.putAll(Map.of(
                "BRANCH_KIND", 1L,
                "BRANCH_EPS", (long) Float.floatToIntBits(4),
                "BRANCH_WEIGHT_OFFSET", (long) Float.floatToIntBits(5),
                "BRANCH_ROUNDING", (long) Rounding.NORMALIZED.id,
                "BRANCH_NORM", 1L,
                "BRANCH_ROUNDED", 1L,
                "RESIDUAL_GATE_ACT", (long) Activation.SILU.id,
                "ALPHA", (long) Float.floatToIntBits(6)));
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (String name : new String[] {"DY", "X", "WEIGHT", "MEAN", "RSTD", "DRESIDUAL_IN", "DX",
            "DRESIDUAL", "DWEIGHT", "DBIAS", "GATE", "BIAS", "DGATE", "BRANCH", "BRANCH_WEIGHT",
            "BRANCH_BIAS", "BRANCH_MEAN", "BRANCH_RSTD", "RESIDUAL_GATE", "SUM_SCALE", "DBRANCH",
            "DBRANCH_WEIGHT", "DBRANCH_BIAS", "DRESIDUAL_GATE"}) {
            tensors.put(name, strided(tensors.size()));
        }
        NormBackward call = NormBackward.layer(2).weightOffset(3).rounding(Rounding.EVERY_STEP)
                .pdlWait(true).pdlTrigger(true).accumulateDweight(true).accumulateDbias(true)
                .dy(tensors.get("DY")).x(tensors.get("X")).weight(tensors.get("WEIGHT"))
                .mean(tensors.get("MEAN")).rstd(tensors.get("RSTD"))
                .dresidualIn(tensors.get("DRESIDUAL_IN")).dx(tensors.get("DX"))
                .dresidual(tensors.get("DRESIDUAL")).dweight(tensors.get("DWEIGHT"))
                .dbias(tensors.get("DBIAS")).gate(tensors.get("GATE")).bias(tensors.get("BIAS"))
                .dgate(tensors.get("DGATE")).gateAct(Activation.TANH)
                .gatePosition(GatePosition.BEFORE_NORM).gateSource(GateSource.ROUNDED)
                .groupSize(32)
                .branch(tensors.get("BRANCH")).branchLayer(4).branchWeightOffset(5)
                .branchWeight(tensors.get("BRANCH_WEIGHT")).branchBias(tensors.get("BRANCH_BIAS"))
                .branchMean(tensors.get("BRANCH_MEAN")).branchRstd(tensors.get("BRANCH_RSTD"))
                .branchRounding(Rounding.NORMALIZED).branchRounded(true)
                .residualGate(tensors.get("RESIDUAL_GATE")).residualGateAct(Activation.SILU)
                .alpha(6).sumScale(tensors.get("SUM_SCALE")).dbranch(tensors.get("DBRANCH"))
                .dbranchWeight(tensors.get("DBRANCH_WEIGHT"))
                .dbranchBias(tensors.get("DBRANCH_BIAS"))
                .dresidualGate(tensors.get("DRESIDUAL_GATE")).accumulateDbranchWeight(true)
                .accumulateDbranchBias(true).accumulateDresidualGate(true);
        long[] words = call.encoded().words();
        assertEquals(words.length, checkFields("NORM_BACKWARD_", words, tensors, scalars));
    }

    /** Every scalar and tensor is set by a method of NormHeads or its part, at its own place. */
    @Test
    void fieldsOfNormHeads() throws Exception {
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (String name : new String[] {"COS", "SIN", "POSITIONS", "SLOTS"}) {
            tensors.put(name, strided(tensors.size()));
        }
        NormHeadsPart part = NormHeadsPart.of(strided(9)).y(strided(10));
        NormHeads call = NormHeads.of(part).rope(6, tensors.get("COS"), tensors.get("SIN"))
                .mrope(7, 8, 9, 10).mropeInterleaved(true).positions(tensors.get("POSITIONS"))
                .slots(tensors.get("SLOTS"));
        long[] words = call.encoded().words();
        int length = checkFields("NORM_HEADS_", words, tensors, Map.of("FLAGS", 8L, "ROPE_DIM", 6L,
                "MROPE_0", 7L, "MROPE_1", 8L, "MROPE_2", 9L, "MROPE_3", 10L));
        long[] rest = java.util.Arrays.copyOfRange(words, length, words.length);
        assertArrayEquals(part.encoded().words(), rest);

        Map<String, Long> scalars = new LinkedHashMap<>();
        scalars.put("FLAGS", 63L);
        scalars.put("KIND", 1L);
        scalars.put("EPS", (long) Float.floatToIntBits(2));
        scalars.put("WEIGHT_OFFSET", (long) Float.floatToIntBits(3));
        scalars.put("ROUNDING", (long) Rounding.EVERY_STEP.id);
        scalars.put("ROPE_ROUNDING", (long) RopeRounding.EVERY_STEP.id);
        scalars.put("ROPE_OFFSET", -1L);
        scalars.put("RESERVED", 0L);
        scalars.put("QUANT_SCHEME", (long) QuantScheme.NVFP4.id);
        scalars.put("QUANT_BLOCK_SIZE", 128L);
        scalars.put("QUANT_SOURCE", (long) QuantSource.ROUNDED.id);
        scalars.put("SCALE_LAYOUT", (long) ScaleLayout.SWIZZLED_128X4.id);
        scalars.put("SCALE_POW2", 1L);
        scalars.put("AMAX_FLOOR", (long) Float.floatToIntBits(5));
        scalars.put("CLAMP", (long) Float.floatToIntBits(6));
        scalars.put("CACHE_SCHEME", (long) QuantScheme.PER_BLOCK.id);
        scalars.put("CACHE_BLOCK_SIZE", 64L);
        scalars.put("CACHE_POW2", 1L);
        scalars.put("QUANT_DIVISION", (long) QuantDivision.DIVIDE.id);
        scalars.put("RESERVED_2", 0L);
        tensors.clear();
        for (String name : new String[] {"X", "WEIGHT", "BIAS", "Y", "MEAN", "RSTD", "MEAN_IN",
            "RSTD_IN", "SUMSQ", "GLOBAL_SCALE", "QUANTIZED", "SCALE", "AMAX", "CACHE",
            "CACHE_SCALE", "CLAMP_SCALE"}) {
            tensors.put(name, strided(tensors.size()));
        }
        NormHeadsPart full = NormHeadsPart.of(tensors.get("X")).layer(2).weightOffset(3)
                .rounding(Rounding.EVERY_STEP).rope(-1).ropeRounding(RopeRounding.EVERY_STEP)
                .ropeInterleaved(true).ropeInverse(true).ropeFromRounded(true).acrossHeads(true)
                .weight(tensors.get("WEIGHT")).bias(tensors.get("BIAS")).y(tensors.get("Y"))
                .mean(tensors.get("MEAN")).rstd(tensors.get("RSTD")).meanIn(tensors.get("MEAN_IN"))
                .rstdIn(tensors.get("RSTD_IN")).sumsq(tensors.get("SUMSQ"))
                .quantScheme(QuantScheme.NVFP4).quantBlockSize(128).quantSource(QuantSource.ROUNDED)
                .scaleLayout(ScaleLayout.SWIZZLED_128X4).scalePow2(true).amaxFloor(5).clamp(6)
                .globalScale(tensors.get("GLOBAL_SCALE")).quantized(tensors.get("QUANTIZED"))
                .scale(tensors.get("SCALE")).amax(tensors.get("AMAX"))
                .cacheScheme(QuantScheme.PER_BLOCK).cacheBlockSize(64).cachePow2(true)
                .cache(tensors.get("CACHE")).cacheScale(tensors.get("CACHE_SCALE"))
                .quantDivision(QuantDivision.DIVIDE).clampScale(tensors.get("CLAMP_SCALE"));
        words = full.encoded().words();
        assertEquals(words.length, checkFields("NORM_HEADS_PART_", words, tensors, scalars));
    }

    /** The same of NormHeadsBackward. */
    @Test
    void fieldsOfNormHeadsBackward() throws Exception {
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (String name : new String[] {"DY", "X", "WEIGHT", "MEAN", "RSTD", "DX", "DWEIGHT",
            "DBIAS"}) {
            tensors.put(name, strided(tensors.size()));
        }
        NormHeadsBackwardPart part = NormHeadsBackwardPart.of(tensors.get("DY"))
                .layer(2, tensors.get("X")).weightOffset(3).rounding(Rounding.EVERY_STEP)
                .rope(-1).ropeInterleaved(true).ropeInverse(true).acrossHeads(true)
                .accumulateDweight(true).accumulateDbias(true)
                .weight(tensors.get("WEIGHT")).mean(tensors.get("MEAN")).rstd(tensors.get("RSTD"))
                .dx(tensors.get("DX")).dweight(tensors.get("DWEIGHT")).dbias(tensors.get("DBIAS"));
        long[] own = part.encoded().words();
        assertEquals(own.length, checkFields("NORM_HEADS_BACKWARD_PART_", own, tensors, Map.of(
                "FLAGS", 239L, // all but ROPE_FROM_ROUNDED, which changes nothing here
                "KIND", 1L, "EPS", (long) Float.floatToIntBits(2),
                "WEIGHT_OFFSET", (long) Float.floatToIntBits(3),
                "ROUNDING", (long) Rounding.EVERY_STEP.id, "ROPE_OFFSET", -1L)));
        NormHeadsBackward call = NormHeadsBackward.of(part).rope(6, strided(1), strided(2))
                .mrope(7, 8, 9, 10).mropeInterleaved(true).positions(strided(3));
        long[] words = call.encoded().words();
        assertEquals(7, words[Words.NORM_HEADS_BACKWARD_MASK]); // slots are the forward's alone
        assertEquals(6, words[Words.NORM_HEADS_BACKWARD_ROPE_DIM]);
        assertEquals(8, words[Words.NORM_HEADS_BACKWARD_FLAGS]);
        assertEquals(10, words[Words.NORM_HEADS_BACKWARD_MROPE_3]);
        int length = Words.NORM_HEADS_BACKWARD_MASK + 1 + 3 * (Words.TENSOR_WORDS + 4);
        assertArrayEquals(own, java.util.Arrays.copyOfRange(words, length, words.length));
    }

    private static Tensor strided(int number) {
        return Tensor.at(Device.cuda(7), 0x1000 + number, DType.BF16, 3, 4).withStrides(-9, 1);
    }

    /** What the words' names begin with: NORM_, NORM_HEADS_, and so on. */
    private static Stream<String> prefixes() {
        return Stream.of(Words.class.getDeclaredFields()).map(Field::getName)
                .filter(name -> name.endsWith("_MAX_WORDS"))
                .map(name -> name.substring(0, name.length() - "MAX_WORDS".length()));
    }

    /** The longest prefix of a name. */
    private static String prefixOf(String name) {
        return prefixes().filter(name::startsWith).max(Comparator.comparingInt(String::length))
                .orElse("");
    }

    /** Checks what the words of a prefix name, and returns how many words these fields have. */
    private static int checkFields(String prefix, long[] words, Map<String, Tensor> tensors,
            Map<String, Long> scalars) throws Exception {
        int mask = valueOf(Words.class.getDeclaredField(prefix + "MASK"));
        int bits = 0;
        int numbers = 0;
        for (Field field : Words.class.getDeclaredFields()) {
            String name = field.getName();
            if (!prefixOf(name).equals(prefix) || name.endsWith("MASK")
                    || name.endsWith("MAX_WORDS")) {
                continue;
            }
            String rest = name.substring(prefix.length());
            if (rest.startsWith("BIT_")) {
                Tensor tensor = tensors.get(rest.substring("BIT_".length()));
                assertNotNull(tensor, name);
                int at = mask + 1 + valueOf(field) * (Words.TENSOR_WORDS + 4);
                assertEquals(tensor.address(), words[at], name);
                bits++;
            } else {
                assertEquals(scalars.get(rest), words[valueOf(field)], name);
                numbers++;
            }
        }
        assertEquals(scalars.size(), numbers);
        assertEquals(tensors.size(), bits);
        assertEquals((1L << bits) - 1, words[mask]);
        return mask + 1 + bits * (Words.TENSOR_WORDS + 4);
    }

    /** Every scalar and every tensor is set by a method of MlaDecode, at its own place. */
    @Test
    void fieldsOfAnMlaDecode() throws Exception {
        Map<String, Long> scalars = Map.of(
                "SM_SCALE", Double.doubleToRawLongBits(0.3),
                "CAUSAL", 1L,
                "LSE_BASE", (long) LseBase.BASE_2.id,
                "MAX_S_Q", 5L,
                "REUSE_PLAN", 1L,
                "SPLIT_TOKENS", 128L,
                "PROFILE_EVENTS", 77L,
                "TOTAL_KV_HINT", 1L << 40);
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (String name : new String[] {"Q_NOPE", "Q_PE", "CKV", "KPE", "KV_LEN", "PAGE_TABLE",
            "KV_INDPTR", "QO_INDPTR", "O", "LSE", "PROFILE"}) {
            tensors.put(name, strided(tensors.size()));
        }
        MlaDecode call = MlaDecode.of(0.3).causal(true).lseBase(LseBase.BASE_2).reusePlan(true)
                .splitTokens(128).totalKvHint(1L << 40).qNope(tensors.get("Q_NOPE"))
                .qPe(tensors.get("Q_PE")).ckv(tensors.get("CKV")).kpe(tensors.get("KPE"))
                .kvLen(tensors.get("KV_LEN")).pageTable(tensors.get("PAGE_TABLE"))
                .kvIndptr(tensors.get("KV_INDPTR")).qoIndptr(tensors.get("QO_INDPTR"), 5)
                .o(tensors.get("O")).lse(tensors.get("LSE")).profile(tensors.get("PROFILE"), 77);
        long[] words = call.encoded().words();
        assertEquals(words.length, checkFields("MLA_DECODE_", words, tensors, scalars));
    }

    /** Every scalar and every tensor is set by a method of the peers' calls, at its own place. */
    @Test
    void fieldsOfPeerCalls() throws Exception {
        try (Context context = Context.cpu();
                Peer peer = Peer.builder(context, 0, 2, DType.F32, 8).create()) {
            long address = PeerCall.addressOf(peer);
            Map<String, Long> scalars = new LinkedHashMap<>();
            scalars.put("PEER", address);
            scalars.put("KIND", 1L);
            scalars.put("EPS", (long) Float.floatToIntBits(2));
            scalars.put("WEIGHT_OFFSET", (long) Float.floatToIntBits(3));
            scalars.put("ROUNDING", (long) Rounding.NORMALIZED.id);
            scalars.put("FLAGS", 7L);
            scalars.put("RESERVED", 0L);
            Map<String, Tensor> tensors = new LinkedHashMap<>();
            for (String name : new String[] {"X", "WEIGHT", "BIAS", "Y", "X2", "WEIGHT2", "BIAS2",
                "Y2"}) {
                tensors.put(name, strided(tensors.size()));
            }
            PeerShardedNorm sharded = PeerShardedNorm.layer(peer, 2).weightOffset(3)
                    .rounding(Rounding.NORMALIZED)
                    .pdlWait(true).pdlTrigger(true).pdlConstantWeights(true)
                    .x(tensors.get("X")).weight(tensors.get("WEIGHT")).bias(tensors.get("BIAS"))
                    .y(tensors.get("Y")).x2(tensors.get("X2")).weight2(tensors.get("WEIGHT2"))
                    .bias2(tensors.get("BIAS2")).y2(tensors.get("Y2"));
            long[] words = sharded.encoded().words();
            assertEquals(words.length,
                    checkFields("PEER_SHARDED_NORM_", words, tensors, scalars));
            scalars.put("ROUNDING", (long) Rounding.EVERY_STEP.id);
            scalars.put("RESIDUAL_ROUNDING", (long) ResidualRounding.ROUND_BEFORE_STATISTICS.id);
            scalars.put("SUM_ROUNDING", (long) PeerSumRounding.EXACT.id);
            scalars.put("QUANT_SCHEME", (long) QuantScheme.NVFP4.id);
            scalars.put("QUANT_BLOCK_SIZE", 128L);
            scalars.put("QUANT_SOURCE", (long) QuantSource.ROUNDED.id);
            scalars.put("SCALE_LAYOUT", (long) ScaleLayout.SWIZZLED_128X4.id);
            scalars.put("SCALE_POW2", 1L);
            scalars.put("AMAX_FLOOR", (long) Float.floatToIntBits(5));
            scalars.put("CLAMP", (long) Float.floatToIntBits(6));
            scalars.put("QUANT_DIVISION", (long) QuantDivision.DIVIDE.id);
            tensors.clear();
            for (String name : new String[] {"X", "RESIDUAL", "WEIGHT", "BIAS", "Y",
                "RESIDUAL_OUT", "MEAN", "RSTD", "GLOBAL_SCALE", "QUANTIZED", "SCALE", "AMAX",
                "CLAMP_SCALE"}) {
                tensors.put(name, strided(tensors.size()));
            }
            PeerAllreduceNorm allreduce = PeerAllreduceNorm.layer(peer, 2).weightOffset(3)
                    .rounding(Rounding.EVERY_STEP)
                    .residualRounding(ResidualRounding.ROUND_BEFORE_STATISTICS)
                    .sumRounding(PeerSumRounding.EXACT)
                    .pdlWait(true).pdlTrigger(true).pdlConstantWeights(true)
                    .quantScheme(QuantScheme.NVFP4).quantBlockSize(128)
                    .quantSource(QuantSource.ROUNDED).scaleLayout(ScaleLayout.SWIZZLED_128X4)
                    .scalePow2(true).amaxFloor(5).clamp(6).quantDivision(QuantDivision.DIVIDE)
                    .x(tensors.get("X")).residual(tensors.get("RESIDUAL"))
                    .weight(tensors.get("WEIGHT")).bias(tensors.get("BIAS"))
                    .y(tensors.get("Y")).residualOut(tensors.get("RESIDUAL_OUT"))
                    .mean(tensors.get("MEAN")).rstd(tensors.get("RSTD"))
                    .globalScale(tensors.get("GLOBAL_SCALE"))
                    .quantized(tensors.get("QUANTIZED")).scale(tensors.get("SCALE"))
                    .amax(tensors.get("AMAX")).clampScale(tensors.get("CLAMP_SCALE"));
            words = allreduce.encoded().words();
            assertEquals(words.length,
                    checkFields("PEER_ALLREDUCE_NORM_", words, tensors, scalars));
        }
    }

    /** Each family of the raw layer is one that a test above compares. */
    @TestFactory
    Stream<DynamicTest> families() {
        Set<String> compared = Set.of("NORM", "NORM_BACKWARD", "NORM_HEADS", "NORM_HEADS_PART",
                "NORM_HEADS_BACKWARD", "NORM_HEADS_BACKWARD_PART", "MLA_DECODE",
                "PEER_ALLREDUCE_NORM", "PEER_SHARDED_NORM");
        return prefixes().map(prefix -> prefix.substring(0, prefix.length() - 1))
                .map(name -> DynamicTest.dynamicTest(name,
                        () -> assertTrue(compared.contains(name), name)));
    }

    /** A defect of the encoder ends in an error of the binding, not in a wild read. */
    @Test
    void malformedWords() {
        try (Context context = Context.cpu()) {
            long handle = Context.acquire(context);
            try {
                long[] words = Norm.rms(0).x(Tensor.allocate(DType.F32, 1, 4)).encoded().words();
                int all = words.length;
                for (int length : new int[] {0, 1, Words.NORM_MASK, all - 1, all + 1, 5000}) {
                    long[] other = java.util.Arrays.copyOf(words, length);
                    AssertionError thrown = assertThrows(AssertionError.class,
                            () -> Raw.fnb_norm(handle, other, 0, 0, 0));
                    assertEquals("the binding made a malformed list of words", thrown.getMessage());
                }
            } finally {
                Context.release(context);
            }
        }
    }
}
