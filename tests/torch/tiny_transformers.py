"""Tiny random models of transformers, saved with their tokenizers."""

import tokenizers
import torch
import transformers

TEXTS = [
    "Report from Oslo: early much rain today. Which weather? snow",
    "Report from Lima: late then much wind today. Which weather? heat",
    "much snow today in Kyoto. Choose: rain, wind",
] * 4
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VOCABULARY = 320
BOS, PAD, EOS = range(3)
_IDS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "max_position_embeddings": 128,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
    "decoder_start_token_id": EOS,
    "forced_eos_token_id": None,
    **_IDS,
}
_GEMMA = {
    "vocab_size": VOCABULARY,
    "intermediate_size": 48,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "query_pre_attn_scalar": 8,
    "sliding_window": 16,
    **SMALL,
    **_IDS,
}
_SIGLIP = {"intermediate_size": 48, "image_size": 16, "patch_size": 8, **SMALL}


def gpt2(positions=128):
    return transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=positions, **SMALL)


def llama(positions=128):
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=positions,
        intermediate_size=48,
        num_key_value_heads=1,
        **SMALL,
    )


def longt5(attention="transient-global"):
    return transformers.LongT5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        local_radius=5,
        global_block_size=4,
        dropout_rate=0.0,
        encoder_attention_type=attention,
        feed_forward_proj="gated-gelu",
        **{"decoder_start_token_id": PAD, **_IDS},
    )


def t5gemma():
    module = transformers.T5GemmaModuleConfig(**_GEMMA)
    return transformers.T5GemmaConfig(
        encoder=module, decoder=module, vocab_size=VOCABULARY, dropout_rate=0.0
    )


def t5gemma2():
    sizes = {**_GEMMA, "final_logit_softcapping": 30.0}
    return transformers.T5Gemma2Config(
        encoder={"text_config": sizes, "vision_config": _SIGLIP, "image_token_index": 319},
        decoder=sizes,
        image_token_index=319,
        eoi_token_index=318,
        **_IDS,
    )


# Model type -> the template with which its tokenizer adds special tokens to a text.
_TEMPLATES = {
    **dict.fromkeys(("bart", "mbart"), "<s> $A </s>"),
    "longt5": "$A </s>",
    **dict.fromkeys(("t5gemma", "t5gemma2"), "<s> $A"),
}
ENCODER_DECODERS = {
    "bart": lambda: transformers.BartConfig(**_BART),
    "mbart": lambda: transformers.MBartConfig(**_BART),
    "longt5": longt5,
    "t5gemma": t5gemma,
    "t5gemma2": t5gemma2,
}
DECODERS = {"gpt2": gpt2, "llama": llama}
# The factor of random weights, so that logits differ, but log-likelihoods have few digits.
_SCALES = {"longt5": 1, "gpt2": 8, "llama": 8}


def save(kind, folder):
    """Saves a random model of a kind with its tokenizer."""
    torch.manual_seed(3)
    if kind in DECODERS:
        model = transformers.AutoModelForCausalLM.from_config(DECODERS[kind]())
        bos = {"template": "<end> $A"} if kind == "llama" else {}
        save_tokenizer(folder, special=["<end>"], ends=("<end>", "<end>"), **bos)
    else:
        model = transformers.AutoModelForSeq2SeqLM.from_config(ENCODER_DECODERS[kind]())
        specials = {"special": ["<s>", "<pad>", "</s>"], "ends": ("<s>", "</s>")}
        save_tokenizer(folder, template=_TEMPLATES[kind], **specials)
    for name, parameter in model.named_parameters():
        if "norm" not in name and parameter.ndim > 1:
            parameter.data *= _SCALES.get(kind, 4)
    model.save_pretrained(folder)


def save_tokenizer(folder, *, special, ends, template=None):
    """Byte-level BPE, as GPT-2's; with a template special tokens are added to every text."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(TEXTS, trainer)
    if template:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[(token, n) for n, token in enumerate(special)]
        )
    bos, eos = ends
    pad = {"pad_token": "<pad>"} if "<pad>" in special else {}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token=bos, eos_token=eos, **pad
    )
    fast.save_pretrained(folder)
