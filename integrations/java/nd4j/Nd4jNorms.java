import dev.fastnorm.Context;
import dev.fastnorm.DType;
import dev.fastnorm.Device;
import dev.fastnorm.Norm;
import dev.fastnorm.Tensor;
import java.lang.ref.Reference;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.factory.Nd4j;

/** Norms of ND4J's arrays, in place of theirs: read and written by their addresses. */
final class Nd4jNorms {
    private Nd4jNorms() {}

    /**
     * The memory of an array, with its strides. It is the array's: whoever uses the tensor keeps
     * the array, as {@link #norm} does.
     */
    static Tensor of(INDArray array) {
        DType dtype = switch (array.dataType()) {
            case FLOAT -> DType.F32;
            case HALF -> DType.F16;
            case BFLOAT16 -> DType.BF16;
            default -> throw new IllegalArgumentException(
                    "the array is of " + array.dataType() + "; required: FLOAT, HALF or BFLOAT16");
        };
        long bytes = array.offset() * array.data().getElementSize();
        return Tensor.at(Device.cpu(), array.data().pointer().address() + bytes, dtype,
                array.shape()).withStrides(array.stride());
    }

    static INDArray rmsNorm(Context context, INDArray x, INDArray weight, double eps) {
        return norm(context, Norm.rms(eps), x, weight, null);
    }

    static INDArray layerNorm(Context context, INDArray x, INDArray weight, INDArray bias,
            double eps) {
        return norm(context, Norm.layer(eps), x, weight, bias);
    }

    private static INDArray norm(Context context, Norm norm, INDArray x, INDArray weight,
            INDArray bias) {
        INDArray y = Nd4j.createUninitialized(x.dataType(), x.shape(), 'c');
        norm.x(of(x)).weight(of(weight)).y(of(y));
        if (bias != null) {
            norm.bias(of(bias));
        }
        norm.run(context);
        Reference.reachabilityFence(x);
        Reference.reachabilityFence(weight);
        Reference.reachabilityFence(bias);
        return y;
    }
}
