# SPDX-License-Identifier: Apache-2.0
# `make check` for those whose fingers know it; the work is in ./check.
.PHONY: check fast
check:
	./check
fast:
	./check --fast
