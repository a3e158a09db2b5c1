use std::error::Error;
use std::time::Duration;
use tower::{Service, ServiceBuilder, ServiceExt};
use windlass::time::{sleep, timeout};

async fn double(number: u64) -> Result<u64, Box<dyn Error>> {
    sleep(Duration::from_millis(number)).await;
    Ok(number * 2)
}

fn main() -> Result<(), Box<dyn Error>> {
    windlass::run(async {
        let mut service = ServiceBuilder::new()
            .map_request(|text: &str| text.len() as u64)
            // In place of tower's own `timeout`, which needs tokio's timer.
            .map_future(|answer| async move { timeout(Duration::from_secs(1), answer).await? })
            .service_fn(double);
        assert_eq!(service.ready().await?.call("four").await?, 8);
        let slow = "x".repeat(3_600_000); // an hour
        let error = service.ready().await?.call(&slow).await.unwrap_err();
        assert!(error.is::<windlass::time::Elapsed>());
        Ok(())
    })?
}
