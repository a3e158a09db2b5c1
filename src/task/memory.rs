//! The memory of ended tasks, kept for new ones.
//!
//! A program that spawns a task per request allocates and frees blocks of a few sizes all the time. So a loop keeps the blocks
//! of tasks that were freed on its thread, in a list for each size. A kept block keeps its reference to the loop's inbox, which
//! every task has: reusing it costs neither a call of the allocator nor an atomic instruction. A task that is freed on another
//! thread, or while its loop does not run, gives its block back to the allocator.
//!
//! A leaf container: it is changed through `&self` without a borrow flag. It is not `Sync`, and while a method uses a list it
//! calls no other code.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::event_loop::core::RemoteEvent;
use crate::event_loop::inbox::Inbox;

/// The sizes of kept blocks differ by this much.
const STEP: usize = 16;

/// The allocator of glibc returns blocks whose size is a multiple of `STEP` and this: so rounding up to it wastes nothing.
const OFFSET: usize = 8;

/// The number of sizes, up to 520 bytes. Larger blocks are not kept: their initialization takes longer than the allocator.
const SIZES: usize = 33;

/// How many blocks of a size are kept. Few under Miri, which does not find uses of a freed task in a block that is kept.
const MOST_KEPT: u32 = if cfg!(miri) { 1 } else { 64 };

/// How much memory a task takes, and in which list its block is kept.
#[derive(Clone, Copy)]
pub(super) struct BlockSize {
    layout: Layout,
    /// `SIZES` if it is not kept.
    list: usize,
}

impl BlockSize {
    /// For a task with this layout.
    pub(super) const fn of(task: Layout) -> BlockSize {
        let list = (task.size() + STEP - 1 - OFFSET) / STEP;
        if list >= SIZES || task.align() > align_of::<Block>() {
            let list = SIZES;
            return BlockSize { layout: task, list };
        }
        assert!(task.size() >= size_of::<Block>());
        let layout = BlockSize::layout_of(list);
        BlockSize { layout, list }
    }

    /// The layout of the blocks in a list.
    const fn layout_of(list: usize) -> Layout {
        match Layout::from_size_align(list * STEP + OFFSET, align_of::<Block>()) {
            Ok(layout) => layout,
            Err(_) => panic!("the size is small"),
        }
    }
}

/// What a kept block holds. The rest of it is not initialized.
struct Block {
    next: *mut Block,
    inbox: Arc<Inbox<RemoteEvent>>,
}

#[derive(Clone, Copy)]
struct List {
    /// Null at the end.
    first: *mut Block,
    len: u32,
}

impl List {
    const EMPTY: List = List {
        first: ptr::null_mut(),
        len: 0,
    };
}

pub(crate) struct TaskMemory {
    lists: [Cell<List>; SIZES],
}

impl Default for TaskMemory {
    fn default() -> TaskMemory {
        TaskMemory {
            lists: [const { Cell::new(List::EMPTY) }; SIZES],
        }
    }
}

impl TaskMemory {
    /// A block of this size, and a reference to the inbox of the loop.
    #[inline]
    pub(super) fn take(
        &self,
        size: BlockSize,
        inbox: &Arc<Inbox<RemoteEvent>>,
    ) -> (NonNull<u8>, Arc<Inbox<RemoteEvent>>) {
        if let Some(cell) = self.lists.get(size.list)
            && let Some(block) = NonNull::new(cell.get().first)
        {
            // SAFETY: see the module. The block is in the list, so `keep` has initialized it, and nothing else uses it. It leaves
            // the list here, and its reference to the inbox is moved out once.
            let Block { next, inbox } = unsafe { block.read() };
            cell.set(List {
                first: next,
                len: cell.get().len - 1,
            });
            return (block.cast(), inbox);
        }
        (allocate(size.layout), inbox.clone())
    }

    /// Keeps a block, or frees it.
    ///
    /// # Safety
    ///
    /// The block comes from `take` with this size, of the loop of this inbox, and nothing uses it any more.
    #[inline]
    pub(super) unsafe fn keep(&self, size: BlockSize, block: NonNull<u8>, inbox: Arc<Inbox<RemoteEvent>>) {
        if let Some(cell) = self.lists.get(size.list)
            && cell.get().len < MOST_KEPT
        {
            let List { first: next, len } = cell.get();
            let block = block.cast::<Block>();
            // SAFETY: the caller's promise: the block is unused. Its layout has the size and the alignment of a `Block` at least.
            unsafe { block.write(Block { next, inbox }) };
            cell.set(List {
                first: block.as_ptr(),
                len: len + 1,
            });
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { free(size, block, inbox) };
    }
}

impl TaskMemory {
    /// Frees the kept blocks.
    pub(crate) fn clear(&self) {
        for (list, cell) in self.lists.iter().enumerate() {
            let mut next = cell.replace(List::EMPTY).first;
            while let Some(block) = NonNull::new(next) {
                // SAFETY: as in `take`; the list has given up the block.
                let kept = unsafe { block.read() };
                next = kept.next;
                let size = BlockSize {
                    layout: BlockSize::layout_of(list),
                    list,
                };
                // SAFETY: the blocks of this list were allocated with this layout, and this one is in no list any more.
                unsafe { free(size, block.cast(), kept.inbox) };
            }
        }
    }
}

impl Drop for TaskMemory {
    fn drop(&mut self) {
        self.clear();
    }
}

#[inline(never)]
fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: a task has a header, so the size is not zero.
    let block = unsafe { alloc(layout) };
    NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Frees a block, on any thread.
///
/// # Safety
///
/// The block comes from [`TaskMemory::take`] with this size, and nothing uses it any more.
#[inline(never)]
pub(super) unsafe fn free(size: BlockSize, block: NonNull<u8>, inbox: Arc<Inbox<RemoteEvent>>) {
    // SAFETY: the caller's promise: `allocate` made the block with this layout.
    unsafe { dealloc(block.as_ptr(), size.layout) };
    drop(inbox);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, DriverChoice};

    #[test]
    fn blocks_are_kept_by_size_and_freed_with_the_loop() {
        let event_loop = Builder::new().driver(DriverChoice::Null).build().unwrap();
        let inbox = &event_loop.core().inbox;
        let references = || Arc::strong_count(inbox);
        let before = references();
        let memory = TaskMemory::default();
        let small = BlockSize::of(Layout::new::<[u64; 15]>());
        let large = BlockSize::of(Layout::new::<[u64; 100]>());
        let taken: Vec<_> = (0..100).map(|_| memory.take(small, inbox)).collect();
        assert_eq!(references(), before + 100);
        for (block, inbox) in taken {
            // SAFETY: it was taken above, with this size.
            unsafe { memory.keep(small, block, inbox) };
        }
        let kept = before + MOST_KEPT as usize;
        assert_eq!(references(), kept);
        let (block, inbox_of_block) = memory.take(small, inbox);
        assert_eq!(references(), kept, "the kept block keeps its reference");
        // SAFETY: as above.
        unsafe { memory.keep(small, block, inbox_of_block) };
        let (block, inbox_of_block) = memory.take(large, inbox);
        // SAFETY: as above.
        unsafe { memory.keep(large, block, inbox_of_block) };
        assert_eq!(references(), kept, "large blocks are not kept");
        drop(memory);
        assert_eq!(references(), before);
    }

    #[test]
    fn sizes_are_rounded_up_to_those_of_the_allocator() {
        let rounded = |size| BlockSize::of(Layout::from_size_align(size, 8).unwrap());
        assert_eq!(rounded(152).layout.size(), 152);
        assert_eq!(rounded(144).layout.size(), 152);
        assert_eq!(rounded(160).layout.size(), 168);
        assert_eq!(rounded(520).layout.size(), 520);
        assert_eq!((rounded(528).layout.size(), rounded(528).list), (528, SIZES));
        assert_eq!(BlockSize::of(Layout::from_size_align(256, 64).unwrap()).list, SIZES);
    }
}
