//! The HTTP and gRPC APIs ("doors"): they turn bytes into calls of the
//! [`Service`](crate::service::Service), and its answers into bytes. No rule of a queue is here.

pub mod config;
pub mod grpc;
pub mod http;
mod pace;
mod shape;
mod unread;

use crate::service::Service;

/// Every door on one router: they are told apart by their paths.
pub fn routes(service: &Service) -> axum::Router {
    // What neither knows is answered by HTTP, which tells gRPC calls apart.
    http::router(service.clone()).merge(grpc::routes(service.clone()).reset_fallback())
}
