// The guide of `docs/guide`, as documentation: its code blocks are tests. This module exists only for rustdoc.
//
// The pages link to each other by labels, which they define as file names, for readers of the repository. `links.md` defines the same labels
// as paths of modules: in Markdown, the first definition of a label applies.

#![doc = include_str!("links.md")]
#![doc = include_str!("../../docs/guide/README.md")]

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/first-program.md")]
#[doc = "---\n\nReference: [`run`](crate::run), [`spawn`](crate::spawn()), [`net`](crate::net), [`EventLoop`](crate::EventLoop)"]
pub mod first_program {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/from-tokio.md")]
#[doc = "---\n\nReference: [`task`](crate::task), [`time`](crate::time), [`sync`](crate::sync), [`compat`](crate::compat)"]
pub mod from_tokio {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/from-asyncio.md")]
#[doc = "---\n\nReference: [`EventLoop`](crate::EventLoop), [`task`](crate::task), [`protocol`](crate::protocol), [`sync`](crate::sync)"]
pub mod from_asyncio {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/buffers.md")]
#[doc = "---\n\nReference: [`IoBuf`](crate::io::IoBuf), [`IoBufMut`](crate::io::IoBufMut), [`ManagedBuf`](crate::io::ManagedBuf), [`BufReader`](crate::io::BufReader)"]
pub mod buffers {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/cancellation.md")]
#[doc = "---\n\nReference: [`timeout`](crate::time::timeout), [`group`](crate::task::group()), [`on_cancel`](crate::task::on_cancel), [`signal`](crate::signal)"]
pub mod cancellation {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/servers.md")]
#[doc = "---\n\nReference: [`net`](crate::net), [`protocol`](crate::protocol), [`process`](crate::process), [`signal`](crate::signal)"]
pub mod servers {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/files.md")]
#[doc = "---\n\nReference: [`fs`](crate::fs), [`File`](crate::fs::File), [`Scan`](crate::fs::Scan)"]
pub mod files {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/blocking.md")]
#[doc = "---\n\nReference: [`spawn_blocking`](crate::spawn_blocking), [`blocking`](crate::blocking)"]
pub mod blocking {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/threads.md")]
#[doc = "---\n\nReference: [`LoopHandle`](crate::LoopHandle), [`LoopThread`](crate::LoopThread), [`sync::thread`](crate::sync::thread)"]
pub mod threads {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/shards.md")]
#[doc = "---\n\nReference: [`shards`](crate::shards), [`Builder`](crate::shards::Builder), [`Shard`](crate::shards::Shard), [`Sharded`](crate::shards::Sharded)"]
pub mod shards {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/drivers.md")]
#[doc = "---\n\nReference: [`DriverChoice`](crate::DriverChoice), [`Builder`](crate::Builder), [`driver`](crate::driver)"]
pub mod drivers {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/testing.md")]
#[doc = "---\n\nReference: [`DriverChoice::Null`](crate::DriverChoice::Null), [`Builder`](crate::Builder), [`io::duplex`](crate::io::duplex)"]
pub mod testing {}

#[doc = include_str!("links.md")]
#[cfg_attr(all(feature = "sim", unix), doc = include_str!("../../docs/guide/faults.md"))]
#[cfg_attr(
    not(all(feature = "sim", unix)),
    doc = "This page needs the feature `sim`, and its code Unix: see `docs/guide/faults.md`."
)]
#[doc = "---\n\nReference: [`rand`](crate::rand), [`time`](crate::time), [`fs`](crate::fs)"]
pub mod faults {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/performance.md")]
#[doc = "---\n\nReference: [`metrics`](crate::metrics), [`Counters`](crate::Counters), [`Builder`](crate::Builder)"]
pub mod performance {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/inspecting.md")]
#[doc = "---\n\nReference: [`dump`](crate::dump()), [`dump_on`](crate::dump_on), [`metrics`](crate::metrics), [`Exception`](crate::Exception)"]
pub mod inspecting {}

#[doc = include_str!("links.md")]
#[cfg_attr(feature = "console", doc = include_str!("../../docs/guide/console.md"))]
#[cfg_attr(
    not(feature = "console"),
    doc = "This page needs the feature `console`: see `docs/guide/console.md`."
)]
#[doc = "---\n\nReference: [`metrics`](crate::metrics), [`dump`](crate::dump())"]
pub mod console {}

#[doc = include_str!("links.md")]
#[cfg_attr(unix, doc = include_str!("../../docs/guide/embedding.md"))]
#[cfg_attr(not(unix), doc = "This page has code for Unix: see `docs/guide/embedding.md`.")]
#[doc = "---\n\nReference: [`EventLoop::pollable`](crate::EventLoop::pollable), [`io::AsyncFd`](crate::io::AsyncFd), [`add_reader`](crate::add_reader)"]
pub mod embedding {}

#[doc = include_str!("links.md")]
#[cfg_attr(all(feature = "hyper", feature = "tls", feature = "compat-futures", feature = "compat-tokio", target_os = "linux"), doc = include_str!("../../docs/guide/ecosystem.md"))]
#[cfg_attr(
    not(all(
        feature = "hyper",
        feature = "tls",
        feature = "compat-futures",
        feature = "compat-tokio",
        target_os = "linux"
    )),
    doc = "This page needs all features of the crate, and its code Linux: see `docs/guide/ecosystem.md`."
)]
#[doc = "---\n\nReference: [`compat`](crate::compat), [`compat::Bridge`](crate::compat::Bridge)"]
pub mod ecosystem {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/tokio-libraries.md")]
#[doc = "---\n\nReference: [`compat`](crate::compat), [`compat::Bridge`](crate::compat::Bridge)"]
pub mod tokio_libraries {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/tokio-runtime.md")]
#[doc = "---\n\nReference: [`EventLoop::enter`](crate::EventLoop::enter), [`EventLoop::set_host_waker`](crate::EventLoop::set_host_waker)"]
pub mod tokio_runtime {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/amqp.md")]
#[doc = "---\n\nReference: [`LoopHandle`](crate::LoopHandle), [`RemoteHandle`](crate::RemoteHandle), [`compat`](crate::compat)"]
pub mod amqp {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide/faq.md")]
pub mod faq {}
