import com.github.tjake.jlama.tensor.AbstractTensor;
import dev.fastnorm.DType;
import dev.fastnorm.Tensor;

/** Tensors of jlama as tensors of libfastnorm: the same memory segment. */
final class JlamaNorms {
    private JlamaNorms() {}

    /** Rows and columns of a tensor of rank 2. A tensor that is a slice is refused. */
    static Tensor of(AbstractTensor<?, ?> tensor) {
        return Tensor.ofSegment(tensor.getMemorySegment(), dtype(tensor), tensor.shape().first(),
                tensor.shape().last());
    }

    /** The one row of a weight or a bias. */
    static Tensor vector(AbstractTensor<?, ?> tensor) {
        return Tensor.ofSegment(tensor.getMemorySegment(), dtype(tensor), tensor.shape().last());
    }

    private static DType dtype(AbstractTensor<?, ?> tensor) {
        if (tensor.shape().isSparse()) {
            throw new IllegalArgumentException(
                    "the tensor is a slice of columns or rows; required: a whole one");
        }
        return switch (tensor.dType()) {
            case F32 -> DType.F32;
            case F16 -> DType.F16;
            case BF16 -> DType.BF16;
            default -> throw new IllegalArgumentException(
                    "the tensor is of " + tensor.dType() + "; required: F32, F16 or BF16");
        };
    }
}
