//! `select!`, `join!`, `try_join!`, and the attributes.

use std::cell::{Cell, RefCell};
use std::future::{pending, ready};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::sync::Queue;
use windlass::task::{JoinSet, yield_now};
use windlass::time::sleep;
use windlass::{counters, join, select, try_join};

use crate::groups::until_receives_in_flight;
use crate::support::{CountDrop, on_every_driver, pair};
use crate::tasks::counter;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
#[allow(clippy::await_holding_refcell_ref, reason = "it is the subject of the test")]
fn select_runs_the_handler_of_the_first_output_that_matches() {
    on_every_driver(|case| {
        case.run(async {
            let value = select! {
                number = ready(1) => number + 1,
                () = pending() => unreachable!(),
            };
            assert_eq!(value, 2);
            // An output that does not match disables its branch.
            let value = select! {
                biased;
                Some(number) = ready(None::<u32>) => number,
                Ok::<_, ()>(number) = async { yield_now().await; Ok(7) } => { number }
                () = sleep(HOUR) => unreachable!(),
            };
            assert_eq!(value, 7);
            // Handlers run when the futures are gone, so they may borrow the same things.
            let words = RefCell::new(vec!["one"]);
            let mut other = vec![1];
            select! {
                _ = async { let _held = words.borrow_mut(); yield_now().await } => words.borrow_mut().push("two"),
                _ = async { other.push(2); pending::<()>().await } => other.push(3),
            }
            assert_eq!((words.into_inner().len(), other.len()), (2, 2));
        });
    });
}

#[test]
fn select_evaluates_conditions_first_and_else_last() {
    on_every_driver(|case| {
        case.run(async {
            let evaluated = Cell::new(0);
            let make = |number: u32| {
                evaluated.set(evaluated.get() + 1);
                ready(number)
            };
            let value = select! {
                number = make(1), if evaluated.get() > 0 => number,
                number = make(2), if evaluated.get() == 0 => number,
            };
            // Disabled futures are made too, but not polled.
            assert_eq!((value, evaluated.get()), (2, 2));
            let value = select! {
                Some(number) = ready(None::<u32>) => number,
                number = make(3), if false => number,
                else => 9,
            };
            assert_eq!(value, 9);
            assert_eq!(select! { else => 1 }, 1);
            let panicked = windlass::spawn(async {
                select! { () = ready(()), if false => {} }
            })
            .await;
            assert!(panicked.unwrap_err().to_string().contains("all branches"));
        });
    });
}

#[test]
fn control_flow_in_handlers_belongs_to_the_caller() {
    async fn first_error() -> Result<u32, String> {
        select! {
            result = ready(Err::<u32, _>("inner".to_owned())) => { result?; }
        }
        unreachable!()
    }
    on_every_driver(|case| {
        case.run(async {
            assert_eq!(first_error().await, Err("inner".to_owned()));
            let queue = Queue::unbounded();
            for number in 0..5 {
                queue.try_put(number).unwrap();
            }
            let mut seen = Vec::new();
            let last = loop {
                select! {
                    Ok(number) = queue.get() => {
                        if number % 2 == 0 { continue; }
                        yield_now().await;
                        seen.push(number);
                        if number == 3 { break number; }
                    },
                    () = pending() => {}
                }
            };
            assert_eq!((last, seen), (3, vec![1, 3]));
        });
    });
}

#[test]
fn a_fair_select_starves_no_branch_and_a_biased_one_prefers_the_first() {
    on_every_driver(|case| {
        case.run(async {
            let mut counts = [0; 3];
            for _ in 0..300 {
                let branch = select! { _ = ready(()) => 0, _ = ready(()) => 1, _ = ready(()) => 2 };
                counts[branch] += 1;
            }
            assert!(counts.iter().all(|&count| count > 50), "{counts:?}");
            for _ in 0..10 {
                let branch = select! { biased; _ = ready(()) => 0, _ = ready(()) => 1 };
                assert_eq!(branch, 0);
            }
        });
    });
}

#[test]
fn a_select_macro_waits_for_the_children_of_its_losers_and_keeps_pinned_futures() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let serving = async {
                let set: JoinSet<()> = JoinSet::new();
                let ended = CountDrop(ended.clone());
                set.spawn(async move {
                    let _ended = ended;
                    let (_client, server) = pair().await;
                    drop(server.read(vec![0; 8]).await);
                });
                pending::<()>().await;
            };
            select! {
                () = serving => unreachable!(),
                () = until_receives_in_flight(1) => assert_eq!((ended.get(), counters().in_flight), (1, 0)),
            }
            let queue = Queue::unbounded();
            let mut kept = pin!(queue.get());
            select! {
                _ = &mut kept => unreachable!(),
                () = yield_now() => {}
            }
            queue.try_put(7).unwrap();
            assert_eq!(kept.await.unwrap(), 7);
        });
    });
}

#[test]
fn select_takes_32_branches() {
    on_every_driver(|case| {
        case.run(async {
            let p = || pending::<u32>();
            let value = select! {
                n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n,
                n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n,
                n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n,
                n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n, n = p() => n,
                n = p() => n, n = p() => n, n = p() => n, n = ready(32) => n,
            };
            assert_eq!(value, 32);
        });
    });
}

#[test]
fn join_macros_return_tuples() {
    on_every_driver(|case| {
        case.run(async {
            assert_eq!(join!(ready(1)), (1,));
            let (a, b, c) = join!(
                async { 1 },
                async {
                    yield_now().await;
                    "two"
                },
                ready('3')
            );
            assert_eq!((a, b, c), (1, "two", '3'));
            let p = |n: u32| ready(n);
            let all = join!(
                p(1),
                p(2),
                p(3),
                p(4),
                p(5),
                p(6),
                p(7),
                p(8),
                p(9),
                p(10),
                p(11),
                p(12),
                p(13),
                p(14),
                p(15),
                p(16)
            );
            assert_eq!((all.0, all.15), (1, 16));
            assert_eq!(try_join!(ready(Ok::<_, u8>(1)), ready(Ok("two"))), Ok((1, "two")));
            assert_eq!(try_join!(ready(Err::<(), _>(5)), pending::<Result<(), u8>>()), Err(5));
            // Biased: polls in order, each time.
            let order = Rc::new(RefCell::new(Vec::new()));
            let log = |name| {
                let order = order.clone();
                async move {
                    for _ in 0..3 {
                        order.borrow_mut().push(name);
                        yield_now().await;
                    }
                }
            };
            join!(biased; log('a'), log('b'));
            assert_eq!(*order.borrow(), ['a', 'b', 'a', 'b', 'a', 'b']);
        });
    });
}

#[cfg(feature = "macros")]
mod attributes {
    use super::*;

    #[windlass::test(virtual_clock)]
    async fn virtual_time_passes_at_once() {
        let start = windlass::time::Instant::now();
        sleep(HOUR).await;
        assert_eq!(start.elapsed(), HOUR);
    }

    #[windlass::test(driver = "null")]
    async fn a_test_may_return_a_result() -> Result<(), Box<dyn std::error::Error>> {
        let number: u32 = "7".parse()?;
        assert_eq!(number, 7);
        Ok(())
    }

    #[windlass::test(driver = "null")]
    #[should_panic(expected = "as expected")]
    async fn a_test_keeps_its_attributes() {
        panic!("as expected");
    }

    #[windlass::main(driver = "null", virtual_clock = true)]
    async fn answer() -> u32 {
        sleep(HOUR).await;
        42
    }

    #[test]
    fn main_runs_any_function() {
        assert_eq!(answer(), 42);
    }

    #[windlass::test(driver = "null")]
    async fn a_refutable_pattern_may_bind_by_mut_and_ref() {
        select! {
            Some((mut word, ref other)) = ready(Some((String::from("a"), String::from("b")))) => {
                word.push_str(other);
                assert_eq!(word, "ab");
            }
            else => unreachable!(),
        }
    }
}
