//! openraft's async runtime on windlass.
