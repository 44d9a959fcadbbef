/* Preloaded into the programs of pods: a socket bound to all addresses and a fixed port is bound to the pod's own
 * address ($POD_BIND_IP) instead, so that two pods on one machine can listen on the same port, as on two machines. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C"
#endif
int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
    typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);
    bind_function next = (bind_function)dlsym(RTLD_NEXT, "bind");
    const char *own = getenv("POD_BIND_IP");
    struct in_addr pod;
    if (own != NULL && address != NULL && inet_pton(AF_INET, own, &pod) == 1) {
        if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
            struct sockaddr_in changed;
            memcpy(&changed, address, sizeof changed);
            if (changed.sin_addr.s_addr == htonl(INADDR_ANY) && changed.sin_port != 0) {
                changed.sin_addr = pod;
                return next(descriptor, (const struct sockaddr *)&changed, sizeof changed);
            }
        }
        if (address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
            struct sockaddr_in6 changed;
            memcpy(&changed, address, sizeof changed);
            if (IN6_IS_ADDR_UNSPECIFIED(&changed.sin6_addr) && changed.sin6_port != 0) {
                memset(&changed.sin6_addr, 0, 10);
                memset(changed.sin6_addr.s6_addr + 10, 0xff, 2);
                memcpy(changed.sin6_addr.s6_addr + 12, &pod, 4);
                return next(descriptor, (const struct sockaddr *)&changed, sizeof changed);
            }
        }
    }
    return next(descriptor, address, length);
}
