//! The last branch of `select!` is called `else`.

fn main() {
    windlass::run(async {
        windlass::select! {
            () = std::future::pending() => {}
            complete => {}
        }
    })
    .unwrap();
}
