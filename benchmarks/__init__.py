# SPDX-License-Identifier: Apache-2.0
"""Real models, and what is measured on them: accuracy, latency, exactness; each against the peers."""
