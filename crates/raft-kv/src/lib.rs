//! A replicated key-value store: openraft for consensus, windlass for everything that touches the machine.
//!
//! It is an example of a whole server, and a test of both libraries. A node is one event loop. [`node::run`] is the same code
//! in a process with real sockets and files, and on a host of [`windlass::sim`](windlass) under partitions and power loss.
//!
//! | module | |
//! |---|---|
//! | [`node`] | starts the parts of a node |
//! | [`log`] | the raft log, in a file |
//! | [`state`] | the keys and values, and their snapshots |
//! | [`network`] | messages between nodes: frames over TCP |
//! | [`api`] | `GET`, `PUT` and compare-and-set for clients, over HTTP |
//! | [`client`] | a client, which knows what a failed request may have done |
//! | [`linearizability`] | decides whether a history of requests is that of a single copy |

pub mod api;
pub mod client;
mod disk;
pub mod linearizability;
pub mod log;
pub mod network;
pub mod node;
pub mod state;
mod types;

pub use self::types::{Applied, Peer, Request, TypeConfig};
