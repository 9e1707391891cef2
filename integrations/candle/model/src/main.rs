//! Runs models of candle-transformers with made-up weights and prints their outputs, one number a
//! line.
//!
//! The program names nothing of libfastnorm: whether it runs on the library is decided by [patch].

use std::time::Instant;

use candle_core::{DType, Device, Error, Module, Result, Shape, Tensor, D};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{bert, llama, qwen3};

/// Weights that depend on the tensor's name alone.
struct MadeUp;

impl SimpleBackend for MadeUp {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let (centre, spread) = if s.rank() == 1 && !name.ends_with("bias") {
            (1.0, 0.5) // the weight of a norm
        } else {
            (0.0, 2.0 / (s.dims()[s.rank() - 1] as f64).sqrt())
        };
        let numbers: Vec<f64> = (0..s.elem_count())
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                centre + spread * ((state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5)
            })
            .collect();
        Tensor::from_vec(numbers, s, dev)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        Err(Error::CannotFindTensor { path: name.into() })
    }

    fn contains_tensor(&self, name: &str) -> bool {
        // As a checkpoint of today.
        !name.ends_with("gamma") && !name.ends_with("beta")
    }
}

fn weights(dtype: DType) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(MadeUp), dtype, Device::Cpu)
}

fn tokens(count: u32, vocabulary: u32) -> Result<Tensor> {
    let numbers = (0..count).map(|i| (i * 37 + 11) % vocabulary);
    Tensor::from_iter(numbers, &Device::Cpu)?.unsqueeze(0)
}

fn print(name: &str, dtype: DType, output: &Tensor) -> Result<()> {
    let dtype = dtype.as_str();
    let output = output.to_dtype(DType::F64)?.flatten_all()?;
    for number in output.to_vec1::<f64>()? {
        println!("{name} {dtype} {number:e}");
    }
    Ok(())
}

/// A prompt, then a few tokens one by one.
fn run_llama(dtype: DType) -> Result<()> {
    let config = llama::Config {
        hidden_size: 256,
        intermediate_size: 512,
        vocab_size: 128,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        ..llama::Config::config_7b_v2(false)
    };
    let model = llama::Llama::load(weights(dtype), &config)?;
    let mut cache = llama::Cache::new(true, dtype, &config, &Device::Cpu)?;
    let mut input = tokens(12, 128)?;
    let mut position = 0;
    for _ in 0..5 {
        let logits = model.forward(&input, position, &mut cache)?;
        print("llama", dtype, &logits)?;
        position += input.dim(1)?;
        input = logits.argmax(D::Minus1)?.unsqueeze(0)?;
    }
    Ok(())
}

/// With norms of query and key heads.
fn run_qwen3(dtype: DType) -> Result<()> {
    let config = qwen3::Config {
        vocab_size: 128,
        hidden_size: 128,
        intermediate_size: 256,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        head_dim: 32,
        attention_bias: false,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        sliding_window: None,
        max_window_layers: 2,
        tie_word_embeddings: false,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        use_sliding_window: false,
        hidden_act: candle_nn::Activation::Silu,
    };
    let mut model = qwen3::ModelForCausalLM::new(&config, weights(dtype))?;
    let mut input = tokens(9, 128)?;
    let mut position = 0;
    for _ in 0..3 {
        let logits = model.forward(&input, position)?;
        print("qwen3", dtype, &logits)?;
        position += input.dim(1)?;
        input = logits.argmax(D::Minus1)?;
    }
    Ok(())
}

/// With LayerNorms.
fn run_bert(dtype: DType) -> Result<()> {
    let config = bert::Config {
        vocab_size: 128,
        hidden_size: 192,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        intermediate_size: 384,
        max_position_embeddings: 64,
        ..bert::Config::default()
    };
    let model = bert::BertModel::load(weights(dtype), &config)?;
    let input = tokens(20, 128)?;
    let output = model.forward(&input, &input.zeros_like()?, None)?;
    print("bert", dtype, &output)
}

fn main() -> Result<()> {
    let norm = candle_nn::RmsNorm::new(Tensor::ones(4, DType::F32, &Device::Cpu)?, 1e-6);
    norm.forward(&Tensor::ones((1, 4), DType::F32, &Device::Cpu)?)?;
    let module = std::any::type_name_of_val(&norm);
    println!("module {}", module.split("::").next().unwrap_or(module));
    let begin = Instant::now();
    for dtype in [DType::F32, DType::F16] {
        run_llama(dtype)?;
        run_qwen3(dtype)?;
    }
    // The mask of bert overflows f16.
    run_bert(DType::F32)?;
    // candle-nn has no norm of f64. Attention of the other two models is in f32 always.
    if std::env::args().nth(1).is_some_and(|arg| arg == "--f64") {
        run_bert(DType::F64)?;
    }
    eprintln!("{:.2} s", begin.elapsed().as_secs_f64());
    Ok(())
}
