package dev.fastnorm;

import java.nio.charset.StandardCharsets;

/** Texts of the library, which come and go as bytes. */
final class Text {
    private Text() {}

    static String of(byte[] text) {
        return text == null ? null : new String(text, StandardCharsets.UTF_8);
    }

    /** The text as C has it, with a zero at its end. */
    static byte[] bytes(String text) {
        return text == null ? null : (text + "\0").getBytes(StandardCharsets.UTF_8);
    }
}
