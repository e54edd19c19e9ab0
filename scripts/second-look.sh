#!/usr/bin/env bash
# After a red `make test`: runs what failed once more, one test after the other on the quiet machine. Servers, browsers and
# schedulers share two cores with three test processes, and one of 6,000 tests that waited too long must not be taken for a
# broken product. It names each, so that a test that needs a second look is mended; more than three are never excused.
set -euo pipefail
failed=.pytest_cache/v/cache/lastfailed
count=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$failed")
if ((count == 0 || count > 3)); then
    echo "second look: $count tests failed; none is excused" >&2
    exit 1
fi
echo "second look at $count of the tests, alone:" >&2
python3 -c 'import json, sys; print("\n".join(json.load(open(sys.argv[1]))))' "$failed" >&2
exec .venv/bin/python -m pytest --last-failed --last-failed-no-failures none -m "not slow" -n 0
