//! Libraries that need tokio's runtime, on windlass.
