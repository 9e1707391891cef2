package dev.fastnorm;

import java.nio.charset.StandardCharsets;

/** Texts of the library, which come as bytes. */
final class Text {
    private Text() {}

    static String of(byte[] text) {
        return text == null ? null : new String(text, StandardCharsets.UTF_8);
    }
}
