package dev.fastnorm;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;
import java.util.Objects;

/**
 * A view of memory: address, device, element type, shape and strides. Immutable; usable by any
 * number of threads at a time.
 *
 * <p>A tensor over a buffer begins at the buffer's position, keeps the buffer alive and is checked
 * against its limits: no call reads or writes outside of the buffer. Buffers must be direct and in
 * native byte order; a read-only one can be an input only. Later changes of the buffer's position
 * or limit have no effect. Memory of a {@code MemorySegment} stays valid while its arena is open.
 * Closing the arena before the last call ends is not found out.
 *
 * <p>A tensor over an array of the Java heap is read and written where it lies, by calls on a CPU.
 * The garbage collector waits while such a call runs, so that an array stays in its place. Long
 * calls are better served by direct buffers. Calls of several ranks, which wait for each other,
 * refuse arrays.
 *
 * <p>A tensor over an address is a promise: memory of that size is there, on that device, until the
 * work that uses it is done. Wrong addresses are not found out.
 *
 * <p>Strides are in elements; where none are given the tensor is compact and row-major.
 */
public final class Tensor {
    private final Memory memory; // null for an address
    private final long positionBytes;
    private final long remainingBytes;
    private final Device device;
    private final DType dtype;
    private final long address;
    private final long[] shape;
    private final long[] strides; // null = compact

    /** The tensor as a part of a call's description; see Words. Not to be changed. */
    final long[] words;

    /** What is wrong with a tensor that the library has to refuse first, or null. */
    final String misfit;

    /**
     * What a tensor lies in, and keeps alive.
     *
     * @param owner a buffer, an array, or a MemorySegment
     * @param kind what it is, for texts
     * @param readOnly whether it must not be written
     */
    private record Memory(Object owner, String kind, boolean readOnly) {}

    private Tensor(Memory memory, long positionBytes, long remainingBytes, Device device,
            DType dtype, long address,
            long[] shape, long[] strides) {
        if (strides != null && strides.length != shape.length) {
            throw new IllegalArgumentException("strides are " + Arrays.toString(strides)
                    + " and shape is "
                    + Arrays.toString(shape) + "; required: one stride for each extent");
        }
        this.memory = memory;
        this.positionBytes = positionBytes;
        this.remainingBytes = remainingBytes;
        this.device = device;
        this.dtype = dtype;
        this.address = address;
        this.shape = shape;
        this.strides = strides;
        misfit = memory == null ? null : fit();
        words = encode();
    }

    // --- over buffers ---

    /**
     * A compact tensor of {@link DType#F32}.
     *
     * @param buffer where it lies, from the buffer's position on
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the buffer is not direct, not in native byte order, or
     *     too short for the shape
     */
    public static Tensor of(FloatBuffer buffer, long... shape) {
        return over(buffer, Float.BYTES, buffer.order(), DType.F32, shape);
    }

    /**
     * A compact tensor of {@link DType#I32}.
     *
     * @param buffer where it lies, from the buffer's position on
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the buffer is not direct, not in native byte order, or
     *     too short for the shape
     */
    public static Tensor of(IntBuffer buffer, long... shape) {
        return over(buffer, Integer.BYTES, buffer.order(), DType.I32, shape);
    }

    /**
     * A compact tensor of {@link DType#I64}.
     *
     * @param buffer where it lies, from the buffer's position on
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the buffer is not direct, not in native byte order, or
     *     too short for the shape
     */
    public static Tensor of(LongBuffer buffer, long... shape) {
        return over(buffer, Long.BYTES, buffer.order(), DType.I64, shape);
    }

    /**
     * A compact tensor of 16-bit elements, which Java has no type for: the buffer holds their bits.
     *
     * @param buffer where it lies, from the buffer's position on
     * @param dtype such as {@link DType#BF16} or {@link DType#F16}
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the buffer is not direct, not in native byte order, or
     *     too short for the shape; or if the dtype's elements do not have 16 bits
     */
    public static Tensor of(ShortBuffer buffer, DType dtype, long... shape) {
        if (dtype.bits() != Short.SIZE) {
            throw new IllegalArgumentException("dtype is " + dtype + ", of " + dtype.bits()
                    + " bits; required for a ShortBuffer: one of 16 bits");
        }
        return over(buffer, Short.BYTES, buffer.order(), dtype, shape);
    }

    /**
     * A compact tensor of any element type.
     *
     * @param buffer where it lies, from the buffer's position on; in native byte order unless the
     *     elements are bytes or smaller
     * @param dtype the element type
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the buffer is not direct, not in native byte order, or
     *     too short for the shape
     */
    public static Tensor of(ByteBuffer buffer, DType dtype, long... shape) {
        return over(buffer, 1, dtype.bits() <= Byte.SIZE ? ByteOrder.nativeOrder() : buffer.order(),
                dtype, shape);
    }

    /**
     * A compact tensor over memory of its own, zeroed; {@link #buffer()}, {@link #floats()} and
     * {@link #shorts()} give access to it.
     *
     * @param dtype the element type
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if an extent is negative, or if the elements take 2 GiB or
     *     more
     */
    public static Tensor allocate(DType dtype, long... shape) {
        long bytes;
        try {
            bytes = dtype.bytes(elements(shape));
        } catch (ArithmeticException e) {
            bytes = Long.MAX_VALUE;
        }
        if (bytes < 0 || bytes > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("shape is " + Arrays.toString(shape)
                    + "; required: extents >= 0 and fewer than 2^31 bytes of elements");
        }
        return of(ByteBuffer.allocateDirect((int) bytes).order(ByteOrder.nativeOrder()), dtype,
                shape);
    }

    /**
     * A compact tensor of {@link DType#F32} over memory of its own, filled from an array.
     *
     * @param values the elements, row by row
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the shape does not have as many elements as the array
     */
    public static Tensor copyOf(float[] values, long... shape) {
        Tensor tensor = allocate(DType.F32, shape);
        FloatBuffer floats = tensor.floats();
        if (floats.remaining() != values.length) {
            throw new IllegalArgumentException("shape is " + Arrays.toString(shape)
                    + " and there are " + values.length
                    + " values; required: as many values as the shape has elements");
        }
        floats.put(values);
        return tensor;
    }

    // --- over arrays and segments ---

    /**
     * A compact tensor of {@link DType#F32} in an array, which is not copied.
     *
     * @param values where it lies
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the array is too short for the shape
     */
    public static Tensor of(float[] values, long... shape) {
        return in(values, (long) values.length * Float.BYTES, DType.F32, shape);
    }

    /**
     * A compact tensor of {@link DType#I32} in an array, which is not copied.
     *
     * @param values where it lies
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the array is too short for the shape
     */
    public static Tensor of(int[] values, long... shape) {
        return in(values, (long) values.length * Integer.BYTES, DType.I32, shape);
    }

    /**
     * A compact tensor of {@link DType#I64} in an array, which is not copied.
     *
     * @param values where it lies
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the array is too short for the shape
     */
    public static Tensor of(long[] values, long... shape) {
        return in(values, (long) values.length * Long.BYTES, DType.I64, shape);
    }

    /**
     * A compact tensor of 16-bit elements, whose bits an array has, which is not copied.
     *
     * @param bits where it lies
     * @param dtype such as {@link DType#BF16} or {@link DType#F16}
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the array is too short for the shape, or if the dtype's
     *     elements do not have 16 bits
     */
    public static Tensor of(short[] bits, DType dtype, long... shape) {
        if (dtype.bits() != Short.SIZE) {
            throw new IllegalArgumentException("dtype is " + dtype + ", of " + dtype.bits()
                    + " bits; required for a short[]: one of 16 bits");
        }
        return in(bits, (long) bits.length * Short.BYTES, dtype, shape);
    }

    /**
     * A compact tensor of any element type, whose bytes an array has, which is not copied.
     *
     * @param bytes where it lies, in native byte order
     * @param dtype the element type
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if the array is too short for the shape
     */
    public static Tensor of(byte[] bytes, DType dtype, long... shape) {
        return in(bytes, bytes.length, dtype, shape);
    }

    /**
     * A compact tensor in a {@code java.lang.foreign.MemorySegment}, of Java 22 or later: in memory
     * outside of the Java heap of any size, or in an array. It is not copied.
     *
     * @param segment the segment; its parameter's type is {@code Object}, as this class runs on
     *     Java 17, too
     * @param dtype the element type
     * @param shape extents, outermost first
     * @return the tensor
     * @throws IllegalArgumentException if it is no segment, too short for the shape, of an arena
     *     that is closed, or a read-only view of an array
     */
    public static Tensor ofSegment(Object segment, DType dtype, long... shape) {
        Segment found = Segment.of(segment);
        NativeLibrary.load();
        return new Tensor(
                new Memory(found.owner(), found.array() ? "array" : "segment", found.readOnly()),
                found.array() ? found.address() : 0, found.bytes(), Device.cpu(),
                Objects.requireNonNull(dtype, "dtype"), found.address(), shape.clone(), null);
    }

    // --- over addresses ---

    /**
     * A compact tensor at an address on a context's device.
     *
     * @param context whose device the memory is on
     * @param address address of the first element
     * @param dtype the element type
     * @param shape extents, outermost first
     * @return the tensor
     */
    public static Tensor at(Context context, long address, DType dtype, long... shape) {
        return at(context.device(), address, dtype, shape);
    }

    /**
     * A compact tensor at an address on a device.
     *
     * @param device where the memory is
     * @param address address of the first element
     * @param dtype the element type
     * @param shape extents, outermost first
     * @return the tensor
     */
    public static Tensor at(Device device, long address, DType dtype, long... shape) {
        Objects.requireNonNull(device, "device");
        return new Tensor(null, 0, 0, device, dtype, address, shape.clone(), null);
    }

    // --- the parts ---

    /**
     * This memory and shape with other strides. Element (i, j, ..) lies i * strides[0] +
     * j * strides[1] + .. elements after the first one.
     *
     * @param strides one for each dimension, in elements; negative ones and, for inputs, 0 are fine
     *     in all dimensions but the last
     * @return the tensor
     * @throws IllegalArgumentException if there are not as many strides as extents, or if an
     *     element lies outside of the buffer
     */
    public Tensor withStrides(long... strides) {
        return new Tensor(memory, positionBytes, remainingBytes, device, dtype, address, shape,
                strides.clone());
    }

    /**
     * Another view of the same memory: such as the query heads of a fused QKV tensor.
     *
     * @param offset where its first element is, in elements from this tensor's first one
     * @param shape its extents
     * @param strides its strides in elements, as for {@link #withStrides}; null for a compact
     *     tensor
     * @return the tensor
     * @throws IllegalArgumentException if there are not as many strides as extents, or if an
     *     element lies outside of the buffer
     */
    public Tensor view(long offset, long[] shape, long[] strides) {
        long most = remainingBytes * 8L / dtype.bits();
        long least = -(positionBytes * 8L / dtype.bits());
        if (memory != null && (offset < least || offset > most)) {
            throw new IllegalArgumentException(
                    "offset is " + offset + " elements; required: inside of the " + memory.kind
                    + ", " + least
                    + " to " + most);
        }
        long bits = offset * dtype.bits();
        if (bits % 8 != 0) {
            throw new IllegalArgumentException("offset is " + offset + " elements of " + dtype
                    + "; required: whole bytes");
        }
        long moved = memory == null ? 0 : bits / 8;
        return new Tensor(memory, positionBytes + moved, remainingBytes - moved, device, dtype,
                address + bits / 8,
                shape.clone(), strides == null ? null : strides.clone());
    }

    /**
     * The element type.
     *
     * @return the type
     */
    public DType dtype() {
        return dtype;
    }

    /**
     * Where the memory is.
     *
     * @return the device
     */
    public Device device() {
        return device;
    }

    /**
     * Address of the first element.
     *
     * @return the address; for a tensor in an array, which has none that lasts, the bytes from the
     *     array's first element on
     */
    public long address() {
        return address;
    }

    /**
     * The extents.
     *
     * @return a copy
     */
    public long[] shape() {
        return shape.clone();
    }

    /**
     * The strides.
     *
     * @return a copy; those of a compact tensor where none were given
     */
    public long[] strides() {
        return strides == null ? compact(shape) : strides.clone();
    }

    /**
     * The buffer that the tensor was made over.
     *
     * @return the buffer itself; null for a tensor at an address, in an array or in a segment
     */
    public Buffer buffer() {
        return memory != null && memory.owner instanceof Buffer buffer ? buffer : null;
    }

    /** The array of the Java heap that the tensor lies in, or null. */
    Object array() {
        return memory != null && memory.owner.getClass().isArray() ? memory.owner : null;
    }

    /**
     * The tensor's memory as floats, in memory order.
     *
     * @return a view of its own of the tensor's memory
     * @throws IllegalStateException if this is not an {@link DType#F32} tensor over a buffer
     */
    public FloatBuffer floats() {
        Object owner = memory == null ? null : memory.owner;
        if (dtype == DType.F32 && owner instanceof float[] values) {
            return FloatBuffer.wrap(values).slice((int) (positionBytes / Float.BYTES),
                    (int) (remainingBytes / Float.BYTES));
        }
        if (dtype == DType.F32 && owner instanceof ByteBuffer bytes) {
            return bytesOf(bytes).asFloatBuffer();
        }
        if (dtype == DType.F32 && owner instanceof FloatBuffer floats) {
            return floats.duplicate().clear().slice((int) (positionBytes / Float.BYTES),
                    (int) (remainingBytes / Float.BYTES));
        }
        throw new IllegalStateException("tensor is " + this
                + "; required: F32, over a float[], a FloatBuffer or a ByteBuffer");
    }

    /**
     * The tensor's memory as 16-bit words, in memory order.
     *
     * @return a view of its own of the tensor's memory
     * @throws IllegalStateException if this is not a tensor of 16-bit elements over a buffer
     */
    public ShortBuffer shorts() {
        Object owner = memory == null ? null : memory.owner;
        if (dtype.bits() == Short.SIZE && owner instanceof short[] bits) {
            return ShortBuffer.wrap(bits).slice((int) (positionBytes / Short.BYTES),
                    (int) (remainingBytes / Short.BYTES));
        }
        if (dtype.bits() == Short.SIZE && owner instanceof ByteBuffer bytes) {
            return bytesOf(bytes).asShortBuffer();
        }
        if (dtype.bits() == Short.SIZE && owner instanceof ShortBuffer shorts) {
            return shorts.duplicate().clear().slice((int) (positionBytes / Short.BYTES),
                    (int) (remainingBytes / Short.BYTES));
        }
        throw new IllegalStateException("tensor is " + this
                + "; required: 16-bit elements, over a short[], a ShortBuffer or a ByteBuffer");
    }

    boolean isReadOnly() {
        return memory != null && memory.readOnly;
    }

    @Override
    public String toString() {
        return "Tensor[" + dtype + " " + Arrays.toString(shape)
                + (strides == null ? "" : ", strides " + Arrays.toString(strides))
                + (array() != null ? " at byte " + address + " of an array"
                : " at 0x" + Long.toHexString(address))
                + " of " + device.type() + ":" + device.id() + "]";
    }

    // --- inside ---

    private static Tensor over(Buffer buffer, int elementBytes, ByteOrder order, DType dtype,
            long[] shape) {
        Objects.requireNonNull(dtype, "dtype");
        if (!buffer.isDirect()) {
            throw new IllegalArgumentException("the buffer is " + buffer
                    + ", on the Java heap; required: a direct one,"
                    + " as ByteBuffer.allocateDirect or Tensor.allocate makes,"
                    + " or the array itself");
        }
        if (order != ByteOrder.nativeOrder()) {
            throw new IllegalArgumentException("the buffer's byte order is " + order
                    + "; required: ByteOrder.nativeOrder(), set before it is filled");
        }
        NativeLibrary.load();
        long begin = (long) buffer.position() * elementBytes;
        long bytes = (long) buffer.remaining() * elementBytes;
        return new Tensor(new Memory(buffer, "buffer", buffer.isReadOnly()), begin, bytes,
                Device.cpu(), dtype, Raw.fnj_buffer_address(buffer) + begin, shape.clone(),
                null);
    }

    private static Tensor in(Object array, long bytes, DType dtype, long[] shape) {
        Objects.requireNonNull(dtype, "dtype");
        NativeLibrary.load();
        return new Tensor(new Memory(array, "array", false), 0, bytes, Device.cpu(), dtype, 0,
                shape.clone(), null);
    }

    private ByteBuffer bytesOf(ByteBuffer bytes) {
        return bytes.duplicate().clear().slice((int) positionBytes, (int) remainingBytes)
                .order(ByteOrder.nativeOrder());
    }

    /** Number of elements; negative if an extent is. */
    private static long elements(long[] shape) {
        long count = 1;
        for (long extent : shape) {
            if (extent < 0) {
                return -1;
            }
            count = Math.multiplyExact(count, extent);
        }
        return count;
    }

    private static long[] compact(long[] shape) {
        long[] strides = new long[shape.length];
        long stride = 1;
        for (int i = shape.length - 1; i >= 0; i--) {
            strides[i] = stride;
            stride *= shape[i];
        }
        return strides;
    }

    /**
     * Throws if an element lies outside of the buffer, but for shapes and strides that the library
     * refuses in its own words: those return the reason, and the call asks the library first.
     */
    private String fit() {
        String reason;
        try {
            reason = outside();
        } catch (ArithmeticException e) {
            reason = "elements that are 2^63 bits or more apart";
        }
        if (reason == null) {
            return null;
        }
        String text = "the tensor of " + dtype + " " + Arrays.toString(shape)
                + (strides == null ? "" : " with strides " + Arrays.toString(strides)) + " has "
                + reason
                + "; required: elements inside of the " + memory.kind + "'s " + remainingBytes
                + " bytes from "
                + (memory.kind.equals("buffer") ? "position on" : "the first element on")
                + (strides == null ? "" : ", or of the " + positionBytes + " before it");
        if (isForTheLibrary()) {
            return text;
        }
        throw new IllegalArgumentException(text);
    }

    private boolean isForTheLibrary() {
        for (long extent : shape) {
            if (extent < 0) {
                return true;
            }
        }
        int last = shape.length - 1;
        return strides != null && last >= 0 && shape[last] > 1 && strides[last] != 1;
    }

    private String outside() {
        long lowest = 0;
        long highest = 0;
        for (int i = 0; i < shape.length; i++) {
            if (shape[i] < 0) {
                return "a negative extent";
            }
            if (shape[i] == 0) {
                return null;
            }
        }
        if (strides == null) {
            highest = elements(shape) - 1;
        } else {
            for (int i = 0; i < shape.length; i++) {
                long reach = Math.multiplyExact(shape[i] - 1, strides[i]);
                lowest = Math.addExact(lowest, Math.min(reach, 0));
                highest = Math.addExact(highest, Math.max(reach, 0));
            }
        }
        long end = dtype.bytes(Math.addExact(highest, 1));
        if (end > remainingBytes) {
            return end + " bytes from its first element on";
        }
        long before = dtype.bytes(Math.negateExact(lowest));
        return before > positionBytes ? before + " bytes before its first element" : null;
    }

    private long[] encode() {
        int rank = shape.length;
        boolean carried = rank <= Words.MAX_RANK;
        long[] list = new long[Words.TENSOR_WORDS
                + (carried ? rank * (strides == null ? 1 : 2) : 0)];
        list[0] = address;
        list[1] = device.type().id | (long) device.id() << 32;
        list[2] = rank | (strides == null ? 0 : 1L << 31) | (long) dtype.id << 32;
        if (carried) {
            System.arraycopy(shape, 0, list, Words.TENSOR_WORDS, rank);
            if (strides != null) {
                System.arraycopy(strides, 0, list, Words.TENSOR_WORDS + rank, rank);
            }
        }
        return list;
    }
}
