// For pages whose only script is their figures.
import { attach } from "./figures.js";

attach();
export { attach };
