"""The page of faults names tests that there are."""

import re

import pytest

from tests.conftest import ROOT

_NAMED = re.findall(r'`(test_\w+\.py)::(\w+)`', (ROOT / 'docs/faults.md').read_text())


def test_the_page_names_tests():
  assert len(_NAMED) > 20


@pytest.mark.parametrize('file, name', sorted(set(_NAMED)))
def test_what_shows_a_promise_is_a_test(file, name):
  assert f'\ndef {name}(' in (ROOT / 'tests' / file).read_text()
