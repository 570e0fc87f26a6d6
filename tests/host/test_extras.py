"""Optional packages that are missing, or here and broken."""

import pytest

from maskjet.errors import MissingDependencyError
from maskjet.host.extras import require


def test_what_is_broken_says_so(monkeypatch, tmp_path):
    (tmp_path / "half_a_package.py").write_text("import another_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"half-a-package, which is here but can't be imported \("):
        require("half_a_package", extra="bench", purpose="A test")
