//! `Sharded`, a service with one value on every shard.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;

use super::call::Call;
use super::error::CallError;
use super::shard::Shard;
use super::state::ShardState;
use crate::event_loop::exception::BoxError;

type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;
type Make = dyn Fn(Shard) -> LocalFuture<Result<Rc<dyn Any>, BoxError>> + Send + Sync;
type Stop = dyn Fn(Rc<dyn Any>) -> LocalFuture<()> + Send + Sync;

/// How a service's value is made on each shard, and what runs before it is dropped.
pub(super) struct Service {
    pub(super) make: Box<Make>,
    pub(super) stop: Option<Box<Stop>>,
}

impl Service {
    pub(super) fn new<T, E, F>(make: impl Fn(Shard) -> F + Send + Sync + 'static) -> Service
    where
        T: 'static,
        E: Into<BoxError>,
        F: Future<Output = Result<T, E>> + 'static,
    {
        let make = move |shard: Shard| -> LocalFuture<Result<Rc<dyn Any>, BoxError>> {
            let value = make(shard);
            Box::pin(async move {
                match value.await {
                    Ok(value) => Ok(Rc::new(value) as Rc<dyn Any>),
                    Err(error) => Err(error.into()),
                }
            })
        };
        Service {
            make: Box::new(make),
            stop: None,
        }
    }

    pub(super) fn on_stop<T, F>(&mut self, stop: impl Fn(Rc<T>) -> F + Send + Sync + 'static)
    where
        T: 'static,
        F: Future<Output = ()> + 'static,
    {
        self.stop = Some(Box::new(move |value| match value.downcast::<T>() {
            Ok(value) => Box::pin(stop(value)),
            Err(_) => unreachable!("a service has values of one type"),
        }));
    }
}

/// A service with one value of type `T` on every shard: [`Pool::service`](super::Pool::service) makes it. The values need
/// not be `Send`, since each stays on its shard. A plain handle: `Copy`, `Send` and `Sync`.
///
/// ```
/// use std::cell::RefCell;
/// use std::collections::HashMap;
/// use windlass::shards::{self, Shard};
///
/// type Map = RefCell<HashMap<String, u32>>;
///
/// let pool = shards::Builder::new().count(2).build()?;
/// let map = pool.service(|_shard| async { Ok::<_, std::io::Error>(Map::default()) });
/// pool.run(move |shard: Shard| async move {
///     let key = format!("key {}", shard.index());
///     let owner = shard.by_key(&key);
///     map.on(&owner, move |map| map.borrow_mut().insert(key, 1)).await?;
///     let total = map.map_reduce(|map| map.borrow().len(), 0, |a, b| a + b).await?;
///     assert!(total == 1 || total == 2);
///     Ok::<(), shards::CallError>(())
/// })?;
/// # Ok::<(), shards::Error>(())
/// ```
pub struct Sharded<T> {
    pool: u32,
    service: u32,
    _values: PhantomData<fn() -> T>,
}

impl<T> Clone for Sharded<T> {
    fn clone(&self) -> Sharded<T> {
        *self
    }
}

impl<T> Copy for Sharded<T> {}

impl<T> fmt::Debug for Sharded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("service", &self.service).finish()
    }
}

impl<T: 'static> Sharded<T> {
    pub(super) fn new(pool: u32, service: usize) -> Sharded<T> {
        Sharded {
            pool,
            service: service as u32,
            _values: PhantomData,
        }
    }

    pub(super) fn index(self) -> usize {
        self.service as usize
    }

    /// This shard's value.
    ///
    /// # Panics
    ///
    /// Outside of a shard of its pool, before the service has started there and after it has stopped.
    #[track_caller]
    pub fn local(&self) -> Rc<T> {
        match self.try_local() {
            Ok(value) => value,
            Err(_) => panic!(
                "windlass: there is no value of this service here: it runs on the shards of its pool, until it has stopped"
            ),
        }
    }

    fn try_local(&self) -> Result<Rc<T>, CallError> {
        let state = ShardState::current_in(self.pool).ok_or(CallError::Gone)?;
        let value = state.services.borrow().get(self.index()).cloned().flatten();
        value.and_then(|value| value.downcast().ok()).ok_or(CallError::Gone)
    }

    /// Calls `function` with the value of a shard: as [`Shard::ask`].
    #[track_caller]
    pub fn on<R: Send + 'static>(&self, shard: &Shard, function: impl FnOnce(&T) -> R + Send + 'static) -> Call<R> {
        let this = *self;
        shard.ask_with(move || Ok(function(&*this.try_local()?)))
    }

    /// Runs the future that `make` makes of the value of a shard: as [`Shard::call`].
    #[track_caller]
    pub fn on_async<M, F>(&self, shard: &Shard, make: M) -> Call<F::Output>
    where
        M: FnOnce(Rc<T>) -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let this = *self;
        shard.call_with(move || async move { Ok(make(this.try_local()?).await) })
    }

    /// Calls `function` with the values of all shards, at the same time. Returns one result per shard, by number.
    ///
    /// # Panics
    ///
    /// Outside of a shard.
    pub async fn on_all<R, M>(&self, function: M) -> Vec<Result<R, CallError>>
    where
        R: Send + 'static,
        M: Fn(&T) -> R + Clone + Send + 'static,
    {
        let shard = Shard::current().expect("windlass: `Sharded::on_all` was called outside of a shard");
        let calls = shard.all().map(|shard| self.on(&shard, function.clone()));
        crate::task::join_all(calls.collect::<Vec<_>>()).await
    }

    /// Calls `map` with the values of all shards, and combines the results by number: `reduce(reduce(first, r0), r1)` and
    /// so on.
    ///
    /// # Errors
    ///
    /// The error of the first shard that has one.
    ///
    /// # Panics
    ///
    /// Outside of a shard.
    pub async fn map_reduce<R, A, M>(&self, map: M, first: A, reduce: impl FnMut(A, R) -> A) -> Result<A, CallError>
    where
        R: Send + 'static,
        M: Fn(&T) -> R + Clone + Send + 'static,
    {
        let results = self.on_all(map).await;
        let results = results.into_iter().collect::<Result<Vec<R>, CallError>>()?;
        Ok(results.into_iter().fold(first, reduce))
    }
}
