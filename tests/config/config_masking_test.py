"""Credentials in what a run saves, and when that is read back."""

import pytest

from t0.compat import gin
from t0.config.saved_config import mask_config, mask_value, refuse_masked
from t0.errors import UserError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hub.api_key", "'abc'"),
        ("a/hub.token", "'abc'"),
        ("PASSWORD", "'abc'"),
        ("hub.headers", "{'Authorization': 'Bearer x'}"),
        ("run.place", "'https://me:pw@host/x'"),
        ("run.place", "'hf_" + "a" * 30 + "'"),
    ],
)
def test_credentials_are_masked(name, value):
    assert mask_value(name, value) == "'***'"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run.batch_size", "('tokens_per_batch', 1024)"),
        ("dense.token_dropout_rate", "0.1"),
        ("hub.token", "%TOKEN"),
        ("hub.token", "@read_token()"),
        ("hub.token", "None"),
        ("random.key", "-17"),
        ("run.init_checkpoint", "'gs://bucket/model.ckpt-5'"),
    ],
)
def test_credentials_masking_leaves_other_values_unchanged(name, value):
    assert mask_value(name, value) == value


def test_credentials_masked_in_saved_configuration_are_asked_for():
    @gin.configurable("masking_test_hub", module="tests")
    def hub(token=None, words=()):
        return token

    given = "SECRET_TOKEN = 'abc'\nmasking_test_hub.token = %SECRET_TOKEN\n"
    long = f"masking_test_hub.words = {['word'] * 40}\n"
    try:
        gin.parse_config(given + long)
        assert hub() == "abc"
        saved = mask_config(gin.operative_config_str)
        assert "abc" not in saved
        gin.clear_config()
        gin.parse_config(saved)
        with pytest.raises(UserError, match=r"^SECRET_TOKEN: masked .* --gin_param=\"SECRET_TOKEN"):
            refuse_masked()
        gin.parse_config("SECRET_TOKEN = 'new'")
        refuse_masked()
        assert hub() == "new"
        # Without a credential the text is gin's own.
        gin.clear_config()
        gin.parse_config(long)
        hub()
        assert mask_config(gin.operative_config_str) == gin.operative_config_str()
    finally:
        gin.clear_config()
