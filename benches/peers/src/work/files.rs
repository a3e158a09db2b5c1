//! Random reads of a cached file.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Numbers;
use crate::runtime::Runtime;

pub(crate) const BLOCK: usize = 4096;
pub(crate) const FILE_LEN: u64 = 64 * 1024 * 1024;
pub(crate) const DEPTHS: [usize; 2] = [1, 32];

/// Reads between two clock readings.
pub(crate) const READS_PER_LOOK: usize = 16;

pub(crate) fn offset(numbers: &mut Numbers) -> u64 {
    numbers.below(FILE_LEN / BLOCK as u64) * BLOCK as u64
}

/// Reads per second at each depth: that many tasks, each reading block after block until the time is over.
pub(crate) async fn measure<R: Runtime>(path: PathBuf, length: Duration) -> io::Result<Vec<f64>> {
    let file = Rc::new(R::open(&path).await?);
    let mut figures = Vec::new();
    for depth in DEPTHS {
        // Warm-up: starts threads and touches memory.
        read::<R>(&file, depth, length / 10).await?;
        figures.push(read::<R>(&file, depth, length).await?);
    }
    Ok(figures)
}

async fn read<R: Runtime>(file: &Rc<R::File>, depth: usize, length: Duration) -> io::Result<f64> {
    let reads = Rc::new(Cell::new(0));
    let failure = Rc::new(Cell::new(None));
    let begin = Instant::now();
    let reader = |seed: usize| {
        let (file, reads, failure) = (Rc::clone(file), Rc::clone(&reads), Rc::clone(&failure));
        async move {
            match read_until::<R>(file, seed as u64, begin + length).await {
                Ok(count) => reads.set(reads.get() + count),
                Err(error) => failure.set(Some(error)),
            }
        }
    };
    let tasks: Vec<_> = (0..depth).map(|seed| R::spawn(reader(seed))).collect();
    for task in tasks {
        task.await;
    }
    match failure.take() {
        Some(error) => Err(error),
        None => Ok(reads.get() as f64 / begin.elapsed().as_secs_f64()),
    }
}

async fn read_until<R: Runtime>(file: Rc<R::File>, seed: u64, end: Instant) -> io::Result<usize> {
    let mut numbers = Numbers::new(seed + 3);
    let mut buffer = vec![0; BLOCK];
    let mut count = 0;
    while Instant::now() < end {
        for _ in 0..READS_PER_LOOK {
            buffer = R::read_at(&file, buffer, offset(&mut numbers)).await?;
        }
        count += READS_PER_LOOK;
    }
    Ok(count)
}
