package dev.fastnorm;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.Optional;

/**
 * What a {@code java.lang.foreign.MemorySegment} says of itself. The class is one of Java 22; this
 * binding runs on Java 17, and asks it by its methods' names.
 *
 * @param owner what is to be kept alive: the segment, or the array that it is a view of
 * @param array whether it is an array
 * @param address of the first byte; in an array, from its first element on
 * @param bytes how many there are
 * @param readOnly whether it must not be written
 */
record Segment(Object owner, boolean array, long address, long bytes, boolean readOnly) {
    private static final String NAME = "java.lang.foreign.MemorySegment";
    private static final Class<?> TYPE = type();
    // Constants, so that calls through them are compiled as those by name are.
    private static final MethodHandle IS_ALIVE = isAlive();
    private static final MethodHandle IS_NATIVE = method("isNative", boolean.class);
    private static final MethodHandle IS_READ_ONLY = method("isReadOnly", boolean.class);
    private static final MethodHandle HEAP_BASE = method("heapBase", Optional.class);
    private static final MethodHandle ADDRESS = method("address", long.class);
    private static final MethodHandle BYTE_SIZE = method("byteSize", long.class);

    static Segment of(Object segment) {
        if (TYPE == null || !TYPE.isInstance(segment)) {
            throw new IllegalArgumentException("segment is "
                    + (segment == null ? "null" : segment.getClass().getName()) + "; required: a "
                    + NAME + ", which Java 22 and later have");
        }
        if (IS_ALIVE == null || HEAP_BASE == null) {
            throw new IllegalStateException(NAME + " lacks methods; required: Java 22 or later");
        }
        boolean isAlive;
        boolean isNative;
        boolean readOnly;
        Object array;
        long address;
        long bytes;
        try {
            isAlive = (boolean) IS_ALIVE.invokeExact(segment);
            isNative = (boolean) IS_NATIVE.invokeExact(segment);
            readOnly = (boolean) IS_READ_ONLY.invokeExact(segment);
            array = isNative ? null : ((Optional<?>) HEAP_BASE.invokeExact(segment)).orElse(null);
            address = (long) ADDRESS.invokeExact(segment);
            bytes = (long) BYTE_SIZE.invokeExact(segment);
        } catch (RuntimeException | Error e) {
            throw e;
        } catch (Throwable e) {
            throw new IllegalStateException("a method of " + NAME + " cannot be called", e);
        }
        if (!isAlive) {
            throw new IllegalArgumentException(
                    "the segment's arena is closed; required: one that is open");
        }
        if (!isNative && array == null) {
            throw new IllegalArgumentException("the segment is a read-only view of an array;"
                    + " required: the array itself, or memory outside of the Java heap");
        }
        return new Segment(isNative ? segment : array, !isNative, address, bytes, readOnly);
    }

    private static Class<?> type() {
        try {
            return Class.forName(NAME);
        } catch (ClassNotFoundException e) {
            return null;
        }
    }

    /** The method of a segment; null before Java 22. */
    private static MethodHandle method(String name, Class<?> result) {
        return TYPE == null ? null : method(TYPE, name, result);
    }

    private static MethodHandle method(Class<?> type, String name, Class<?> result) {
        try {
            MethodHandle found = MethodHandles.publicLookup().unreflect(type.getMethod(name));
            return found.asType(MethodType.methodType(result, Object.class));
        } catch (ReflectiveOperationException e) {
            return null;
        }
    }

    /** Whether the arena of a segment is open; null before Java 22. */
    private static MethodHandle isAlive() {
        MethodHandle scope = method("scope", Object.class);
        if (scope == null) {
            return null;
        }
        for (Class<?> inner : TYPE.getDeclaredClasses()) {
            MethodHandle alive = inner.getSimpleName().equals("Scope")
                    ? method(inner, "isAlive", boolean.class) : null;
            if (alive != null) {
                return MethodHandles.filterReturnValue(scope, alive);
            }
        }
        return null;
    }
}
