"""Tiny configs of the text models in transformers' table of encoder-decoders."""

import transformers as hf

from tests.torch import tiny_transformers as tiny

_BERT = {
    "vocab_size": tiny.VOCABULARY,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": tiny.PAD,
    **tiny.SMALL,
}
_SEAMLESS = {
    **{k: v for k, v in tiny._BART.items() if k != "d_model"},
    "hidden_size": 32,
    "speech_encoder_layers": 1,
    "speech_encoder_attention_heads": 2,
    "speech_encoder_intermediate_size": 48,
    "t2u_encoder_layers": 1,
    "t2u_decoder_layers": 1,
}
_PROPHETNET = {
    **{f"num_{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"num_{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
}


def _bart(kind, *without, **more):
    fields = {k: v for k, v in tiny._BART.items() if k not in without}
    return lambda: getattr(hf, kind)(**{**fields, **more})


def _composite(kind):
    sides = [getattr(hf, kind)(**_BERT).to_dict()]
    sides.append(getattr(hf, kind)(is_decoder=True, add_cross_attention=True, **_BERT).to_dict())
    return hf.EncoderDecoderConfig(
        encoder=sides[0], decoder=sides[1], decoder_start_token_id=tiny.BOS, **tiny._IDS
    )


def _led():
    positions = {"max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 64}
    return _bart("LEDConfig", "max_position_embeddings", attention_window=8, **positions)()


def _prophetnet():
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {"vocab_size": tiny.VOCABULARY, "hidden_size": 32, "max_position_embeddings": 128}
    return hf.ProphetNetConfig(ngram=2, **sizes, **_PROPHETNET, **ids)


def _switch():
    sizes = {"vocab_size": tiny.VOCABULARY, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_heads": 2}
    return hf.SwitchTransformersConfig(
        num_layers=2,
        num_decoder_layers=2,
        num_experts=4,
        dropout_rate=0.0,
        decoder_start_token_id=tiny.PAD,
        **sizes,
        **tiny._IDS,
    )


# T5, mT5 and umT5 have their own engine, and audio models read no texts.
T5S = {"t5", "mt5", "umt5"}
CONFIGS = {
    **tiny.ENCODER_DECODERS,
    "bigbird_pegasus": _bart("BigBirdPegasusConfig", attention_type="original_full"),
    "block sparse": _bart("BigBirdPegasusConfig", attention_type="block_sparse"),
    "blenderbot": _bart("BlenderbotConfig"),
    "blenderbot-small": _bart("BlenderbotSmallConfig"),
    "encoder-decoder": lambda: _composite("BertConfig"),
    "roberta": lambda: _composite("RobertaConfig"),
    "fsmt": _bart(
        "FSMTConfig",
        "vocab_size",
        langs=["en", "de"],
        src_vocab_size=tiny.VOCABULARY,
        tgt_vocab_size=tiny.VOCABULARY,
    ),
    "led": _led,
    "m2m_100": _bart("M2M100Config"),
    "marian": _bart("MarianConfig"),
    "mvp": _bart("MvpConfig"),
    "nllb-moe": _bart("NllbMoeConfig", num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2),
    "few places": _bart("NllbMoeConfig", num_experts=4, moe_eval_capacity_token_fraction=0.5),
    "pegasus": _bart("PegasusConfig"),
    "pegasus_x": _bart("PegasusXConfig", block_size=8, num_global_tokens=4),
    "plbart": _bart("PLBartConfig"),
    "prophetnet": _prophetnet,
    "seamless_m4t": lambda: hf.SeamlessM4TConfig(**_SEAMLESS),
    "seamless_m4t_v2": lambda: hf.SeamlessM4Tv2Config(**_SEAMLESS),
    "switch_transformers": _switch,
}
REFUSED = {
    "block sparse": "Expected 'original_full'",
    "few places": "Expected 1.0",
    "prophetnet": "the score of a text changes",
}
