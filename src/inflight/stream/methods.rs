//! The public read and write methods of streams, as macros: each type of stream has them, with their documentation.

/// The public read methods of a type that has a `fn bytes(&self) -> &ByteStream`.
macro_rules! reading_methods {
    () => {
        /// Receives into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of
        /// stream. A `Vec` then has that length. A buffer without capacity is an `InvalidInput` error.
        ///
        /// **Cancel safety:** a dropped read loses no data: the next read returns the bytes that it had received.
        /// Leaking a polled future ([`std::mem::forget`]) blocks every later read of this stream forever; its buffer is
        /// freed when the stream is dropped. Writes are not affected.
        pub fn read<B: $crate::io::IoBufMut>(&self, buf: B) -> impl Future<Output = $crate::io::BufResult<usize, B>> {
            self.bytes().read(buf)
        }

        /// Fills `buf` up to its length (not its capacity), like std's `read_exact`. If the stream ends first, the
        /// error is `UnexpectedEof`. A buffer with capacity but no length is an `InvalidInput` error, because it is
        /// almost certainly a mistake.
        ///
        /// **Cancel safety:** after a cancellation or an error, the next read returns the bytes received so far.
        pub fn read_exact<B: $crate::io::IoBufMut>(
            &self,
            buf: B,
        ) -> impl Future<Output = $crate::io::BufResult<(), B>> {
            self.bytes().read_exact(buf)
        }

        /// Receives into a buffer of the runtime's pool, taken only when data arrives: an idle stream holds none. An
        /// empty buffer means end of stream.
        pub fn read_managed(&self) -> impl Future<Output = std::io::Result<$crate::io::ManagedBuf>> {
            self.bytes().read_managed()
        }

        /// Receives into several buffers, each filled before the next. Returns the number of bytes; 0 at the end.
        pub async fn read_vectored<B: $crate::io::IoBufMut>(
            &self,
            bufs: Vec<B>,
        ) -> $crate::io::BufResult<usize, Vec<B>> {
            self.bytes().read_vectored(bufs).await
        }
    };
}

/// The public write methods of a type that has a `fn bytes(&self) -> &ByteStream`.
macro_rules! writing_methods {
    () => {
        /// Sends from `buf` and returns the number of bytes sent, which may be less than its length.
        ///
        /// **Cancel safety:** a dropped write may have sent any prefix of its buffer; the next write waits for its end.
        pub fn write<B: $crate::io::IoBuf>(&self, buf: B) -> impl Future<Output = $crate::io::BufResult<usize, B>> {
            self.bytes().write(buf)
        }

        /// Sends all of `buf`, without other writes in between.
        pub fn write_all<B: $crate::io::IoBuf>(&self, buf: B) -> impl Future<Output = $crate::io::BufResult<(), B>> {
            self.bytes().write_all(buf)
        }

        /// Sends from several buffers in order, at most 1,024 per call, and returns the number of bytes sent.
        pub async fn write_vectored<B: $crate::io::IoBuf>(&self, bufs: Vec<B>) -> $crate::io::BufResult<usize, Vec<B>> {
            self.bytes().write_vectored(bufs).await
        }

        /// Sends all of several buffers, any number of them, without other writes in between.
        pub async fn write_all_vectored<B: $crate::io::IoBuf>(
            &self,
            bufs: Vec<B>,
        ) -> $crate::io::BufResult<(), Vec<B>> {
            self.bytes().write_all_vectored(bufs).await
        }
    };
}

pub(crate) use {reading_methods, writing_methods};
