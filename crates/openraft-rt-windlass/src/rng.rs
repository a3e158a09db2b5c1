//! The loop's random numbers, as a generator of the crate rand.

use std::convert::Infallible;
use std::rc::Rc;

use windlass::rand::Rng;

/// A generator that is seeded by the operating system or, on a simulated host, by the simulation. **Not for secrets.**
#[derive(Clone, Debug)]
pub struct LoopRng {
    rng: Rng,
    /// As openraft demands of its `ThreadLocalRng`: it stays on its thread.
    _not_send: std::marker::PhantomData<Rc<()>>,
}

impl LoopRng {
    /// A generator with a seed of its own. None is kept for the thread: all hosts of a simulation share one, and so do
    /// the simulations that run one after the other.
    pub(crate) fn new() -> LoopRng {
        LoopRng {
            rng: Rng::new(),
            _not_send: std::marker::PhantomData,
        }
    }
}

impl rand::TryRng for LoopRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        // The high bits of xoshiro256++ are the better ones.
        Ok((self.rng.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.rng.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.rng.fill(bytes);
        Ok(())
    }
}
