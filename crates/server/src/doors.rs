//! The HTTP and gRPC APIs ("doors"): they turn bytes into calls of the
//! [`Service`](crate::service::Service), and its answers into bytes. No rule of a queue is here.

pub mod config;
mod exchange;
pub mod grpc;
pub mod http;
mod pace;
mod shape;
pub mod standby;
mod unread;

use axum::Router;

pub use exchange::Doors;

use crate::service::Service;

/// HTTP and gRPC on one router, distinguished by their paths.
pub fn routes(service: &Service) -> Router {
    // Unknown paths are answered by HTTP, which recognises gRPC calls.
    http::router(service.clone()).merge(grpc::routes(service.clone()).reset_fallback())
}
