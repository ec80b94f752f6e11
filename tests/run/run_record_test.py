"""The record of a command is for its owner alone."""

from t0.run import command


def test_command_record_is_masked_and_private_to_its_owner(tmp_path):
    for _ in range(2):
        command.save_command(str(tmp_path), ["t5", "--hf_token=abc", "--gin_param=a.key = 'b'"])
    records = sorted((tmp_path / "commands").iterdir())
    assert [path.name for path in records] == ["command", "command.1"]
    for path in records:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text() == "t5 '--hf_token=***' '--gin_param=a.key = ***'\n"
