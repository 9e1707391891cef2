package dev.fastnorm;

/** Where the modulation is rounded to x's dtype on its way. */
public enum ModulationRounding {
    /** Nowhere: the product and the sum are one operation. */
    ONCE(fastnorm_modulation_rounding.FASTNORM_MODULATION_ONCE),
    /** The normalised row, the sums with tables, 1 + scale, the product, and the sum. */
    EVERY_STEP(fastnorm_modulation_rounding.FASTNORM_MODULATION_EVERY_STEP);

    final int id;

    ModulationRounding(int id) {
        this.id = id;
    }
}
