package dev.fastnorm;

import java.io.IOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** What a shared object says of itself, read before it is loaded and its code runs. */
final class Elf {
    private static final int MAGIC = 0x464c457f;
    private static final int CLASS_64_LITTLE = 0x0102;
    private static final int SEGMENT_LOAD = 1;
    private static final int SEGMENT_DYNAMIC = 2;
    private static final int TAG_STRTAB = 5;
    private static final int TAG_SONAME = 14;

    private final ByteBuffer file;

    private Elf(ByteBuffer file) {
        this.file = file;
    }

    /**
     * The name that a library is linked by.
     *
     * @param path the library's file
     * @return its DT_SONAME; null if it has none
     * @throws IOException if the file cannot be read or is no 64-bit little-endian ELF file
     */
    static String soname(Path path) throws IOException {
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)) {
            // Mapped, not read: a library with GPU kernels has tens of megabytes.
            ByteBuffer file = channel
                    .map(FileChannel.MapMode.READ_ONLY, 0,
                    Math.min(channel.size(), Integer.MAX_VALUE))
                    .order(ByteOrder.LITTLE_ENDIAN);
            return new Elf(file).soname();
        } catch (IndexOutOfBoundsException | BufferUnderflowException | ArithmeticException e) {
            throw new IOException("not a complete ELF file", e);
        }
    }

    private String soname() throws IOException {
        if (file.getInt(0) != MAGIC || file.getShort(4) != CLASS_64_LITTLE) {
            throw new IOException("not a 64-bit little-endian ELF file");
        }
        int dynamic = dynamicSegment();
        long strings = -1;
        long name = -1;
        for (int at = dynamic; dynamic >= 0 && file.getLong(at) != 0; at += 16) {
            if (file.getLong(at) == TAG_STRTAB) {
                strings = file.getLong(at + 8);
            } else if (file.getLong(at) == TAG_SONAME) {
                name = file.getLong(at + 8);
            }
        }
        return strings < 0 || name < 0 ? null : textAt(offsetOf(strings) + Math.toIntExact(name));
    }

    private int segments() {
        return Short.toUnsignedInt(file.getShort(56));
    }

    private int segment(int i) {
        return Math.toIntExact(file.getLong(32)
                + (long) i * Short.toUnsignedInt(file.getShort(54)));
    }

    private int dynamicSegment() {
        for (int i = 0; i < segments(); i++) {
            if (file.getInt(segment(i)) == SEGMENT_DYNAMIC) {
                return Math.toIntExact(file.getLong(segment(i) + 8));
            }
        }
        return -1;
    }

    /** Where in the file an address of the loaded library comes from. */
    private int offsetOf(long address) throws IOException {
        for (int i = 0; i < segments(); i++) {
            int at = segment(i);
            long begin = file.getLong(at + 16);
            if (file.getInt(at) == SEGMENT_LOAD && address >= begin
                    && address - begin < file.getLong(at + 32)) {
                return Math.toIntExact(file.getLong(at + 8) + address - begin);
            }
        }
        throw new IOException("not a complete ELF file");
    }

    private String textAt(int offset) {
        int end = offset;
        while (file.get(end) != 0) {
            end++;
        }
        byte[] text = new byte[end - offset];
        file.get(offset, text);
        return new String(text, StandardCharsets.UTF_8);
    }
}
