package dev.fastnorm;

/**
 * One kernel of the loaded library.
 *
 * @param family the functions it serves, such as {@code "norm"}
 * @param arch where it runs, such as {@code "sm_90"} or {@code "avx512"}
 * @param name unique within family and arch
 */
public record KernelInfo(String family, String arch, String name) {}
