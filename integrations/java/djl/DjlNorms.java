import ai.djl.ndarray.NDArray;
import dev.fastnorm.Context;
import dev.fastnorm.DType;
import dev.fastnorm.Norm;
import dev.fastnorm.Tensor;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Norms of DJL's arrays, in place of the engine's: read and written where the engine has them. */
final class DjlNorms {
    private DjlNorms() {}

    /**
     * The memory of an array of the PyTorch engine. It is the engine's and there until the array is
     * closed, by itself or by its manager.
     */
    static Tensor of(NDArray array) {
        DType dtype = switch (array.getDataType()) {
            case FLOAT32 -> DType.F32;
            case FLOAT16 -> DType.F16;
            case BFLOAT16 -> DType.BF16;
            default -> throw new IllegalArgumentException("the array is of " + array.getDataType()
                    + "; required: FLOAT32, FLOAT16 or BFLOAT16");
        };
        ByteBuffer buffer = array.toByteBuffer(true);
        if (!buffer.isDirect()) {
            throw new IllegalArgumentException("the engine gives a copy of the array; required: "
                    + "an array of the PyTorch engine that is contiguous and on the CPU");
        }
        return Tensor.of(buffer.order(ByteOrder.nativeOrder()), dtype,
                array.getShape().getShape());
    }

    /** The weight is a parameter: a program makes its tensor once, by {@link #of}. */
    static NDArray rmsNorm(Context context, NDArray x, Tensor weight, double eps) {
        NDArray y = x.getManager().create(x.getShape(), x.getDataType());
        Norm.rms(eps).x(of(x)).weight(weight).y(of(y)).run(context);
        return y;
    }

    /** Weight and bias as that of {@link #rmsNorm}. */
    static NDArray layerNorm(Context context, NDArray x, Tensor weight, Tensor bias, double eps) {
        NDArray y = x.getManager().create(x.getShape(), x.getDataType());
        Norm.layer(eps).x(of(x)).weight(weight).bias(bias).y(of(y)).run(context);
        return y;
    }
}
