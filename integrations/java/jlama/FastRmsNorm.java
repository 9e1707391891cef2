import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.RMSNorm;
import com.github.tjake.jlama.tensor.AbstractTensor;
import dev.fastnorm.Context;
import dev.fastnorm.Norm;
import dev.fastnorm.Tensor;

/** jlama's RMSNorm by libfastnorm: a model's blocks take it in place of theirs. */
final class FastRmsNorm extends RMSNorm {
    private final Context context;
    private final AbstractModel model;
    private final Tensor weight; // keeps the segment
    private final float adjustment;

    /** {@code adjustment} is added to the weight: 1 in Gemma's models, else 0. */
    FastRmsNorm(Context context, AbstractModel model, AbstractTensor<?, ?> weight,
            float adjustment) {
        super(model, weight, adjustment);
        this.context = context;
        this.model = model;
        this.weight = JlamaNorms.vector(weight);
        this.adjustment = adjustment;
    }

    @Override
    public AbstractTensor forward(AbstractTensor x, int offset, int length) {
        int columns = x.shape().last();
        if (offset != 0 || length != columns || columns != model.getConfig().embeddingLength) {
            return super.forward(x, offset, length); // a part of the columns, of a model in parts
        }
        AbstractTensor<?, ?> y = model.makeDenseTensor(x.shape());
        Norm.rms(model.getConfig().layerNormEps).x(JlamaNorms.of(x))
                .weight(weight).weightOffset(adjustment).y(JlamaNorms.of(y))
                .run(context);
        return y;
    }
}
