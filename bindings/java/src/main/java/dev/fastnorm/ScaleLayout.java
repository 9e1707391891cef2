package dev.fastnorm;

/** Order of the scales in memory. */
public enum ScaleLayout {
    /** The scales of a row lie together. */
    ROW_MAJOR(fastnorm_scale_layout.FASTNORM_SCALE_ROW_MAJOR),
    /** The scales of a column of blocks lie together. */
    COLUMN_MAJOR(fastnorm_scale_layout.FASTNORM_SCALE_COLUMN_MAJOR),
    /** Tiles of 128 rows x 4 scales, padding zeroed. */
    SWIZZLED_128X4(fastnorm_scale_layout.FASTNORM_SCALE_SWIZZLED_128X4);

    final int id;

    ScaleLayout(int id) {
        this.id = id;
    }
}
