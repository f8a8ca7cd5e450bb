"""The command line and Python have one set of defaults."""

from dataclasses import fields

from tilewright.cli.generate import PARAMETERS, Options
from tilewright.generation.sampling import SamplingParams


def test_sampling_defaults_of_the_command_line_are_those_of_python():
    options = {field.name: field.default for field in fields(Options)}
    given = {name: options[name] for name in PARAMETERS if options[name] is not None}
    assert {"temperature", "max_tokens"} <= given.keys()
    assert SamplingParams.of(n=options["samples"], **given) == SamplingParams()
